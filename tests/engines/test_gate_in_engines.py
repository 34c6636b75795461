"""The gate inside the real servers of vLLM and sglang-kt: each of their paths wants the key.

No model is loaded. vLLM's application is built as its server builds it. sglang-kt's server is
launched by its own function; what it would start beside itself, on GPUs, is left out, and packages
that compute there are stand-ins.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import engine_environment
import pytest

from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

KEY = "canary-0123456789"
# The gate is asked with its code from the program and a key file of the test.
_HEAD = """
import json, sys
program, key_file = sys.argv[1:3]
sys.path.append(program)
from kimi_prov.contract import paths
paths.MACHINE_KEY = key_file
from kimi_prov.on_host.engine import launch
"""
_ASK = """
import asyncio

def status(path, method, *key):
    headers = [(b"host", b"x"), *[(b"authorization", b"Bearer " + k.encode()) for k in key]]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("x", 80)}
    said = []
    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}
    async def send(message):
        said.append(message)
    async def whole():
        await app(scope, receive, send)
    try:
        asyncio.run(asyncio.wait_for(whole(), 60))
    except Exception:
        return -1 if not said else said[0]["status"]
    return said[0]["status"]

def every(routes):
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from every(inner.routes) if inner else [route]

found = {}
for route in every(app.routes):
    for method in sorted(getattr(route, "methods", None) or ["GET"]):
        found[f"{method} {route.path}"] = status(route.path, method)
told = {"routes": found, "wrong": status("/nothing", "GET", "x"),
    "right": status("/nothing", "GET", KEY)}
"""
_VLLM = f"""
{engine_environment.IMPORT_PARSER}
try:
    from vllm.entrypoints.launchers.app import build_app
except ImportError:
    from vllm.entrypoints.openai.api_server import build_app
words = ["--middleware", launch.GATE]
app = build_app(make_arg_parser(FlexibleArgumentParser()).parse_args(words), ("generate",))
"""
_SGLANG = """
import sglang_without_gpus
from unittest.mock import MagicMock
launch.guard_sglang(KEY)
from sglang.srt.server_args import prepare_server_args
server_args = prepare_server_args(["--model-path", "dummy", "--enable-metrics"])
from sglang.srt.entrypoints import http_server
http_server._launch_subprocesses = lambda **_: (MagicMock(), MagicMock(), [{}], None)
http_server.parse_remote_instance_transfer_engine_info_from_scheduler_infos = lambda _: None
http_server.set_uvicorn_logging_configs = lambda _: None
served = []
http_server.uvicorn.run = lambda application, **_: served.append(application)
http_server.launch_server(server_args)
app, = served
"""
_SGLANG_TOLD = """
sent = {}
class Stop(BaseException):
    pass
def get(url, headers, **_):
    sent.update(headers)
    raise Stop
http_server.requests.get = get
http_server.time.sleep = lambda _: None
try:
    http_server._execute_server_warmup(server_args)
except Stop:
    pass
told |= {"logged": f"{server_args=}", "sent": sent}
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict]:
    """What a script says that runs in the python of an environment."""
    folder = tmp_path_factory.mktemp("gate")
    program = build_zipapp(folder / "kimi-target.pyz")
    (folder / "key").write_text(f"engine {KEY}\n")

    def run(python: Path, *parts: str, more: str = "") -> dict:
        code = "\n".join([f"KEY = {KEY!r}", _HEAD, *parts, "print(json.dumps(told))"])
        done = subprocess.run(
            [python, "-c", code, program, folder / "key"],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": more, "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def assert_closed(found: dict) -> None:
    open_ones = [route for route, status in found["routes"].items() if status != 401]
    assert sorted({route.split()[1] for route in open_ones}) == ["/health"]
    assert len(found["routes"]) > 20
    assert (found["wrong"], found["right"]) == (401, 404)


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0", "0.33.0"])
def test_every_path_of_vllm_wants_the_key(
    version: str, parser_of: Callable[[str], Path], told: Callable[..., dict]
) -> None:
    found = told(parser_of(version) / "bin" / "python", _VLLM, _ASK)
    assert_closed(found)
    assert "POST /invocations" in found["routes"]


def test_every_path_of_sglang_wants_the_key_which_its_log_does_not_show(
    told: Callable[..., dict],
) -> None:
    python, path = engine_environment.sglang()
    found = told(python, _SGLANG, _ASK, _SGLANG_TOLD, more=path)
    assert_closed(found)
    assert "POST /update_weights_from_tensor" in found["routes"]
    assert found["sent"] == {"Authorization": f"Bearer {KEY}"}
    assert "api_key='***'" in found["logged"]
    assert KEY not in found["logged"]
