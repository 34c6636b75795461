"""Runs one NCCL all-reduce over all GPUs of the machine, with the engine's own Python and torch.

`nccl-proof` reads {"python", "ranks", "env", "proof"} from standard input, and records `proof`
where the sum was right: a proof is valid for one engine and one driver. `nccl-proof --ranks` starts
the ranks in the sandbox, because they run the engine's code.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import sandbox
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import write_json

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import NcclProofAnswer

# Seconds: the first collective of a machine sets its channels up, and a bad plugin hangs instead of
# failing.
TIMEOUT_S = 180.0
_START_TIMEOUT_S = 30.0
_MIB = 1 << 20
_MAX_SAID_LENGTH = 400
# Also for a host of a group: the sandbox reaches only the loopback address.
_NETWORK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET"}
# One rank: the sum must contain the ones of every other rank.
_RANK = """\
import datetime, os, torch
import torch.distributed as group
rank, ranks, backend = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["BACKEND"]
where = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(where)
group.init_process_group(backend, timeout=datetime.timedelta(seconds=120))
ones = torch.ones(int(os.environ["ELEMENTS"]), device=where)
group.all_reduce(ones)
assert bool((ones == ranks).all()), f"rank {rank}: the sum is wrong"
group.destroy_process_group()
"""


def main(argv: list[str]) -> int:
    """Prove and record; the sandbox runs `--ranks`."""
    request = json.load(sys.stdin)
    if "--ranks" in argv:
        return answer(prove(request))
    found = _run_in_sandbox(request)
    if not found["proven"]:
        raise HostError(
            f"the NCCL all-reduce over all GPUs failed: {found['said']}",
            "look for what NCCL loads: ldconfig -p | grep -i nccl; NCCL_DEBUG=INFO says more",
        )
    write_json(paths.NCCL_STATE, request["proof"])
    return answer({"proven": True, "said": ""})


def _run_in_sandbox(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output of the ranks; it is untrusted data."""
    done = sandbox.run(
        *(request["python"], "-I", paths.ZIPAPP, "nccl-proof", "--ranks"),
        env={"PATH": os.defpath, **request["env"]},
        stdin=json.dumps(request),
        timeout=TIMEOUT_S + _START_TIMEOUT_S,
        gpus=True,
    )
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1])
        return {"proven": found["proven"] is True, "said": str(found["said"])}
    except (IndexError, ValueError, TypeError, KeyError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"proven": False, "said": said[-_MAX_SAID_LENGTH:]}


def prove(request: dict[str, Any], *, backend: str = "nccl") -> NcclProofAnswer:
    """Run one process for each GPU; `said` is the first error."""
    ranks = int(request["ranks"])
    common = {
        **os.environ,
        **request["env"],
        **_NETWORK,
        "NCCL_DEBUG": "WARN",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_find_free_port()),
        "WORLD_SIZE": str(ranks),
        "BACKEND": backend,
        "ELEMENTS": str(16 * _MIB),
    }
    running = [
        subprocess.Popen(
            [request["python"], "-I", "-c", _RANK],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    end = time.monotonic() + TIMEOUT_S
    said = [_await_rank(process, end) for process in running]
    wrong = [text for text in said if text]
    return {"proven": not wrong, "said": wrong[0] if wrong else ""}


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _await_rank(process: subprocess.Popen[str], end: float) -> str:
    """Return empty where the rank got the right sum before `end`; else its last lines."""
    try:
        text, _ = process.communicate(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        text += f"\ndid not end within {TIMEOUT_S:.0f} s"
    if process.returncode == 0:
        return ""
    return (
        " | ".join(line.strip() for line in text.splitlines()[-3:])[-_MAX_SAID_LENGTH:]
        or "no reason given"
    )
