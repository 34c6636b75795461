"""How an engine is started behind the gate: here engines of a few lines, in a python of their own.

They stand in for vLLM and sglang as far as those were read: what an argument parser gives, who adds
which middleware, and what is logged. tests/engines/test_gate_in_engines.py asks the real ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from locales import latin

from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from pathlib import Path

KEY = "canary-0123456789"
VLLM = """
import argparse, importlib, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--middleware", action="append", default=[])
given = parser.parse_args()
names = [name.rsplit(".", 1) for name in given.middleware]
found = [getattr(importlib.import_module(module), name) for module, name in names]
import cpuinfo
words = open("/proc/self/cmdline").read().split("\\0")
print(json.dumps({"port": given.port, "names": [kind.__name__ for kind in found],
    "name": __name__, "cpuinfo": cpuinfo.__file__, "words": words, "env": dict(os.environ)}))
"""
SGLANG = """
import argparse, dataclasses, json, pickle
@dataclasses.dataclass
class ServerArgs:
    port: int
    api_key: str
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--api-key")
server_args = ServerArgs(**vars(parser.parse_args()))
class App:
    def add_middleware(self, kind, **options):
        self.kind, self.options = kind.__name__, options
app = App()
from sglang.srt.utils.auth import add_api_key_middleware
add_api_key_middleware(app, api_key=server_args.api_key, admin_api_key=None)
copy = pickle.loads(pickle.dumps(server_args))
print(json.dumps({"logged": f"{server_args=} {copy=} {vars(server_args)}", "kind": app.kind,
    "options": app.options, "sent": f"Bearer {copy.api_key}"}))
"""
# What vLLM 0.32.0's own entry point to headless ranks uses, by the same names.
HEADLESS = """
import argparse, json, os, sys
FlexibleArgumentParser = argparse.ArgumentParser
def make_arg_parser(parser):
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--api-server-count", type=int)
    return parser
def validate_parsed_serve_args(args):
    assert args.node_rank > 0, "a head is not headless"
def run_headless(args):
    import cpuinfo
    assert args.api_server_count == 0
    print(json.dumps({"rank": args.node_rank, "cpuinfo": cpuinfo.__file__,
        "spawn": os.environ["VLLM_WORKER_MULTIPROC_METHOD"], "argv": sys.argv}))
"""
# A chat template with an umlaut, read and logged as engines do: without naming an encoding.
READS = """
import subprocess, sys
text = open({folder!r} + "/template").read()
subprocess.run([sys.executable, "-c", "print(open({folder!r} + '/template').read())"], check=True)
print(text, len(text))
"""


@pytest.fixture
def start(tmp_path: Path):
    """Run the program as the unit does; the file of the key lies where the test may write."""
    program = build_zipapp(tmp_path / "kimi-target.pyz")
    (tmp_path / "key").write_text(f"engine {KEY}\n")
    modules = {
        "vllm/server.py": VLLM,
        "vllm/entrypoints/cli/serve.py": HEADLESS,
        "cpuinfo.py": "",
        "sglang/launch_server.py": SGLANG,
        "sglang/srt/utils/auth.py": "def add_api_key_middleware(app, **_): app.open = True\n",
        "sglang/srt/utils/__init__.py": "",
        "broken.py": "",
        "vllm/reads.py": READS.format(folder=str(tmp_path)),
    }
    for name, text in modules.items():
        (tmp_path / "env" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "env" / name).write_text(text)
    patch = f"import kimi_prov.contract.paths as p; p.MACHINE_KEY = {str(tmp_path / 'key')!r}; "
    code = f"import sys; sys.path.insert(0, {str(program)!r}); {patch}"
    code += "from kimi_prov.on_host.__main__ import run; sys.exit(run(sys.argv[1:]))"

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "engine", "-m", *words]
        env = {"PYTHONPATH": str(tmp_path / "env"), **more}
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=env, check=False)

    return run


def test_vllm_is_started_with_the_gate_and_the_key_in_no_argument_or_variable(start) -> None:
    done = start("vllm.server", "--port", "8001")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["port"], told["names"], told["name"]) == (8001, ["Gate"], "__main__")
    assert KEY not in json.dumps(told)
    # The engine's own module, not the one that travels with our code.
    assert told["cpuinfo"].endswith("env/cpuinfo.py")


def test_a_headless_rank_is_started_by_vllm_s_own_way_without_key_and_gate(
    start, tmp_path: Path
) -> None:
    (tmp_path / "key").unlink()
    done = start("vllm.server", "--node-rank", "1", "--headless")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rank"], told["spawn"]) == (1, "spawn")
    assert told["argv"] == ["vllm", "--node-rank", "1", "--headless"]
    assert told["cpuinfo"].endswith("env/cpuinfo.py")
    refused = start("vllm.server", "--headless", "--what")
    assert refused.returncode == 2
    assert "unrecognized arguments: --what" in refused.stderr
    crashed = start("vllm.server", "--headless", "--node-rank", "0")
    assert crashed.returncode == 1
    assert "a head is not headless" in crashed.stderr


def test_sglang_has_the_key_to_warm_up_with_and_logs_it_nowhere(start) -> None:
    done = start("sglang.launch_server", "--port", "8001")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["sent"] == f"Bearer {KEY}"
    assert KEY not in told["logged"]
    assert (told["kind"], told["options"]) == ("Gate", {})


def test_an_engine_that_ends_ends_as_it_would_by_itself(start) -> None:
    refused = start("vllm.server", "--what")
    assert refused.returncode == 2
    assert "unrecognized arguments: --what" in refused.stderr
    crashed = start("vllm.nothing")
    assert crashed.returncode == 1
    assert crashed.stderr.strip().endswith("No module named vllm.nothing")


def test_without_a_key_or_an_engine_that_it_can_guard_nothing_starts(start, tmp_path: Path) -> None:
    other = start("broken")
    assert other.returncode != 0
    assert "no engine that the machine key is known to guard" in other.stdout
    (tmp_path / "key").unlink()
    without = start("vllm.server")
    assert without.returncode != 0
    assert "run `kimi-prov apply`" in without.stdout


def test_an_engine_reads_and_writes_utf_8_where_the_machine_s_locale_is_another(
    start, tmp_path: Path
) -> None:
    """On a machine of de_DE.ISO-8859-1 the same bytes would be seven other characters."""
    (tmp_path / "template").write_bytes("Grüße 你好".encode())
    done = start("vllm.reads", **latin(tmp_path / "locales"))
    assert done.stdout.splitlines() == ["Grüße 你好", "Grüße 你好 8"], done.stderr
