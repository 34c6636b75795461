"""The control socket in vLLM's own server: it sleeps and wakes by our orders, and by no request.

On processors vLLM frees nothing, but stops and goes on by the same calls: tests/gpu has the cards.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import ports
import pytest
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.lab import model
from kimi_prov.on_host.engine import control, ready
from kimi_prov.on_host.system import machine_key
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

# A first start of vLLM on two busy cores.
START_S = 600.0
_SERVE = """
import sys
program, key_file, *words = sys.argv[1:]
sys.path.append(program)
from kimi_prov.contract import paths
paths.MACHINE_KEY = key_file
from pathlib import Path
from kimi_prov.on_host.engine import gate, launch
gate.Gate.__init__.__defaults__ = (key_file,)
sys.exit(launch.main(["-m", "vllm.entrypoints.openai.api_server", *words]))
"""


@pytest.fixture(params=["0.32.0"])
def served(
    request: pytest.FixtureRequest,
    parser_of: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[int, str]]:
    """The port of a server, and its control socket."""
    folder = tmp_path_factory.mktemp("control")
    model.make_model(folder / "model", "bf16")
    build_zipapp(folder / "kimi.pyz")
    machine_key.ensure(folder / "key")
    monkeypatch.setattr(ready, "MACHINE_KEY", str(folder / "key"))
    port = ports.free_port()
    words = ["--model", str(folder / "model"), "--port", str(port), "--host", "127.0.0.1"]
    words += ["--served-model-name", "tiny", "--max-model-len", "512", "--enforce-eager"]
    environment = {
        **os.environ,
        paths.CONTROL_VARIABLE: str(folder / "control.sock"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    python = parser_of(request.param) / "bin" / "python"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [python, "-c", _SERVE, folder / "kimi.pyz", folder / "key", *words],
            stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        up = until(lambda: answers(port) or server.poll() is not None, START_S)
        assert up, "no answer"
        assert server.poll() is None, (folder / "log").read_text()[-4000:]
        yield port, str(folder / "control.sock")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def answers(port: int) -> bool:
    return ready.send_request(port, "GET", "/health")[0] is None


def complete(port: int) -> str:
    """A greedy answer."""
    question = {"model": "tiny", "prompt": "a b c", "max_tokens": 8, "temperature": 0}
    refusal, text = ready.send_request(port, "POST", "/v1/completions", json.dumps(question))
    assert refusal is None, refusal
    return str(json.loads(text)["choices"][0]["text"])


def order(where: str, words: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(where)
        connection.sendall(words.encode() + b"\n")
        with connection.makefile("rb") as stream:
            return dict(json.loads(stream.readline()))


def test_it_sleeps_and_wakes_by_orders_and_no_request_reaches_it(served: tuple[int, str]) -> None:
    port, where = served
    before = complete(port)
    assert order(where, control.STATE)["asleep"] is False
    assert order(where, control.SLEEP)["asleep"] is True
    assert order(where, control.SLEEP)["asleep"] is True
    assert answers(port)
    assert order(where, control.WAKE)["asleep"] is False
    assert complete(port) == before
    for path in ("/sleep", "/sleep?level=1", "/wake_up", "/is_sleeping"):
        refusal, _ = ready.send_request(port, "POST", path)
        assert "404" in str(refusal), refusal
    assert order(where, control.STATE)["asleep"] is False
