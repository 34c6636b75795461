"""`engine-check` asks the engine's own argument parser whether it accepts the command lines.

It runs before a unit is written. Each engine version has its own flags, so only that version can
answer. Parsing imports the engine, which takes seconds and is done in the sandbox: for a command
line that was accepted once, a file is left in the environment, which is never changed in place.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Callable

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import process, sandbox
from kimi_prov.on_host.system.envelope import answer

MARKS = ".accepted"
_ACCEPTED = "kimi-prov: accepted"
_TIMEOUT_S = 600
_SCRATCH = {"XDG_CACHE_HOME": "/tmp"}  # noqa: S108 - the sandbox has one of its own

_FULL_DISK_ERRORS = ("No space left on device", "No usable temporary directory")

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


def main(argv: list[str]) -> int:
    """Read {"env_dir", "gpus", "instances": [{"argv", "env"}]} from standard input, answer in JSON.

    The answer is {"ok", "changed"}: `changed` when a parser ran. `--check` runs none.
    """
    request = json.load(sys.stdin)
    env_dir = Path(request["env_dir"])
    # The imported code may use the GPUs, and stores nothing. Importing torch, MKL runs on each CPU
    # in turn, and would wait there behind an engine that serves: on Linux 6.18 a process that waits
    # behind vLLM's sched_yield loop starves for as long as the loop computes.
    confined = partial(sandbox.run, gpus=request["gpus"], binds=False)
    changed = False
    for instance in request["instances"]:
        mark = env_dir / MARKS / _compute_digest(instance["argv"])
        if mark.exists():
            continue
        changed = True
        if "--check" in argv:
            continue
        refusal = ask(instance["argv"], {**instance["env"], **_SCRATCH}, run=confined)
        if refusal:
            full = any(words in refusal for words in _FULL_DISK_ERRORS)
            raise HostError(refusal, "free space on its disk, and run this again" if full else None)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return answer({"ok": True, "changed": changed})


def ask(argv: list[str], env: dict[str, str], *, run: Run | None = None) -> str | None:
    """Check a command line with the engine's parser; return the reason of a refusal, else None.

    `argv` is the whole command line: `PYTHON -m MODULE ARGUMENT...`. `run` runs it; without `run`
    it runs directly, which a managed machine never does.
    """
    if len(argv) < 3 or argv[1] != "-m":
        return f"expected PYTHON -m MODULE ARGUMENT..., got {' '.join(argv[:3])}"
    done = (run or _run_here)(
        *(argv[0], "-c", _build_parse_program(), *argv[2:]),
        env={"PATH": os.defpath, **env},
        timeout=_TIMEOUT_S,
    )
    if done.returncode == process.TIMED_OUT:
        return f"the argument parser of {argv[2]} did not answer within {_TIMEOUT_S} s"
    if isinstance(done, process.Unfinished):
        return f"it cannot run: {done.stderr}"
    if done.returncode == 0 and done.stdout.rstrip().endswith(_ACCEPTED):
        return None
    return _find_reason(done.stderr)


def _compute_digest(argv: list[str]) -> str:
    return hashlib.sha256("\0".join(argv).encode()).hexdigest()[:32]


def _run_here(*argv: str, env: dict[str, str], timeout: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="kimi-engine-check-") as home:
        own = {"HOME": home, "XDG_CACHE_HOME": home}
        return process.run(*argv, env={**env, **own}, cwd=home, timeout=timeout)


def _find_reason(stderr: str) -> str:
    """Return argparse's error, or else the last line of a traceback."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if ": error: " in line:
            return " ".join([line.split(": error: ", 1)[1], *lines[number + 1 :]])
    return lines[-1] if lines else "it ended without output"


def _build_parse_program() -> str:
    """Return the program for the engine's python: it ends once the arguments are parsed."""
    return f"""
import argparse, os, runpy, sys

def parsed(self, args=None, namespace=None, parse=argparse.ArgumentParser.parse_args):
    found = parse(self, args, namespace)
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.entrypoints."):
            for check in ("validate_parsed_serve_args", "validate_api_server_args"):
                vars(module).get(check, id)(found)
    print({_ACCEPTED!r}, flush=True)
    os._exit(0)  # not one step further: the next would start the engine

argparse.ArgumentParser.parse_args = parsed
module = sys.argv[1]
del sys.argv[0]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
