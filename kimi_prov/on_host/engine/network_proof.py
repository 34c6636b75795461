"""Measures the network between the hosts of a group, with the engine's own Python and torch.

`network-proof` runs on all hosts of a group at the same time, also beside an engine that serves: it
takes some seconds, one port of the group and little memory. It reads the group from the plan on the
machine and runs `network-proof --rank ...` in the sandbox, because that is code of the engine.

The figures are those of nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests): an all-reduce of S
bytes over n ranks that takes t seconds has the bus bandwidth S / t x 2 (n - 1) / n, which is what
each link carries in each direction, whatever n is. The latency is the mean time of an all-reduce
of four bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import time
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine import nccl_log
from kimi_prov.on_host.probe import devices, interfaces
from kimi_prov.on_host.system import plans, sandbox
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.answers import NcclTransport
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.group import GroupPlan

# Seconds: the last rank may import torch from a slow disk while its engine serves.
_MEETING_TIMEOUT_S = 90
_TIMEOUT_S = 150.0
_MIB = 1 << 20
_MIN_BYTES = _MIB
_MAX_BYTES = {"gloo": 64 * _MIB, "nccl": 256 * _MIB}
_ROUND_S = 0.4
_ROUNDS = 4
_SMALL_ROUNDS = 100
_FLOAT = 4
_MAX_SAID_LENGTH = 400
_MAX_NAME = 64


def main(argv: list[str]) -> int:
    """Answer with {"rank", "found", "said", "link"}; the sandbox runs `--rank`.

    `found` is the result of `measure`, None where it failed: `said` has the reason then.
    """
    if argv:
        options = _parse_options(argv)
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        os.environ.update(dict.fromkeys(names, options.interface))
        with _keep_nccl_log() as log:
            figures = measure(
                rank=options.rank,
                size=options.size,
                master=options.master,
                port=options.port,
                backend=options.backend,
            )
            return answer({**figures, "transport": nccl_log.read_transport(read_text(log))})
    plan = plans.read_machine_plan(paths.PLAN)
    group = plan.get("group")
    if not group:
        raise HostError(f"{paths.PLAN} names no group: the host serves its model alone")
    found = _run_in_sandbox(plan, group)
    return answer({"rank": group["rank"], "link": describe_link(group, Machine()), **found})


@contextlib.contextmanager
def _keep_nccl_log() -> Iterator[str]:
    """Have NCCL of this process write what it takes to a file, beside the answer on the output."""
    with TemporaryDirectory() as folder:
        log = os.path.join(folder, "nccl.log")
        os.environ.update({**nccl_log.VARIABLES, "NCCL_DEBUG_FILE": log})
        yield log


def _parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="network-proof")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--master", required=True, metavar="ADDRESS")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    return parser.parse_args(argv)


def _run_in_sandbox(plan: MachinePlan, group: GroupPlan) -> dict[str, Any]:
    """Return what this rank measured, or why it failed; it is untrusted data."""
    instance = plan["instances"][0]
    gpus = bool(instance["gpus"])
    python = f"{plan['engine']['env_dir']}/bin/python"
    options = {
        "rank": group["rank"],
        "size": group["size"],
        "master": group["members"][0]["address"],
        # The last port that the firewall opens to the group: engines count up from the first.
        "port": group["last_port"],
        "interface": group["interface"],
        "backend": "nccl" if gpus else "gloo",
    }
    done = sandbox.run(
        *(python, "-I", paths.ZIPAPP, "network-proof"),
        *(f"--{name}={value}" for name, value in options.items()),
        env={"PATH": os.defpath, **instance["env"], "OMP_NUM_THREADS": "1"},
        timeout=_TIMEOUT_S,
        gpus=gpus,
        # A rank reaches itself by its own address.
        peers=[*group["own_addresses"], *group["peer_addresses"]],
        rdma=bool(group.get("rdma")),
    )
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        error = HostError.from_answer(found)
        if error is None:
            figures = {
                key: _parse_positive(found[key]) for key in ("bandwidth_bytes_s", "latency_s")
            }
            kept = {
                "backend": options["backend"],
                "bytes": int(found["bytes"]),
                **figures,
                "transport": _parse_transport(found.get("transport")),
            }
            return {"found": kept, "said": ""}
        said = error.message
    except (IndexError, ValueError, TypeError, KeyError, AttributeError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return {"found": None, "said": said[-_MAX_SAID_LENGTH:]}


def _parse_transport(value: object) -> NcclTransport | None:
    """Return what the engine's process read of NCCL's lines, in its form; None for another."""
    if not isinstance(value, dict) or not isinstance(value.get("network"), str):
        return None
    devices, reason = value.get("devices"), value.get("reason")
    names = (
        [name[:_MAX_NAME] for name in devices if isinstance(name, str)]
        if isinstance(devices, list)
        else []
    )
    return {
        "network": value["network"][:_MAX_NAME],
        "devices": names[: nccl_log.MAX_DEVICES],
        "direct": value.get("direct") is True,
        "reason": reason if reason in (nccl_log.NO_LIBRARY, nccl_log.NO_DEVICE) else None,
    }


def _parse_positive(value: object) -> float:
    if isinstance(value, float) and 0 < value < float("inf"):
        return value
    raise ValueError(value)


def describe_link(group: GroupPlan, machine: Machine) -> dict[str, Any]:
    """Return the expected speeds of the group's network on this host, in bits a second.

    `rdma_bits_per_s` is the slowest of the devices that NCCL uses, None without them.
    """
    rows = {row["name"]: row for row in interfaces.list_interfaces(machine)}
    own, rdma = rows.get(group["interface"] or ""), group.get("rdma")
    rates = [
        devices.read_rdma_rate(machine, path)
        for name in (rdma["devices"] if rdma else ())
        for device, _, port in [name.partition(":")]
        for path in machine.glob(f"/sys/class/infiniband/{device}/ports/{port or '*'}")
    ]
    return {
        "interface": group["interface"],
        "speed_bits_per_s": own.get("speed_bits_per_s") if own else None,
        "mtu": own.get("mtu") if own else None,
        "rdma_bits_per_s": min((rate for rate in rates if rate), default=None),
    }


def measure(*, rank: int, size: int, master: str, port: int, backend: str) -> dict[str, Any]:
    """Measure as one of `size` processes that call this; all of them return about the same.

    {"backend", "bandwidth_bytes_s", "latency_s", "bytes"}: bytes a second as above, seconds, and
    the size of the large tensor. Raises what torch raises where a peer is missing or a connection
    breaks, and HostError for a wrong sum.
    """
    torch: Any = import_module("torch")
    group: Any = import_module("torch.distributed")
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(port))
    where = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(where)
    patience = datetime.timedelta(seconds=_MEETING_TIMEOUT_S)
    group.init_process_group(backend, rank=rank, world_size=size, timeout=patience)
    # Without a device a barrier of NCCL may use the GPU that has the rank's number.
    alone = {"device_ids": [where.index]} if backend == "nccl" else {}

    def timed(values: Any, rounds: int) -> float:  # noqa: ANN401 - a tensor
        """Return the seconds of one round."""
        group.barrier(**alone)
        start = time.monotonic()
        for _ in range(rounds):
            group.all_reduce(values)
        if backend == "nccl":
            torch.cuda.synchronize()
        return (time.monotonic() - start) / rounds

    try:
        small = torch.zeros(1, device=where)
        # The first rounds open connections, and show the speed of the link.
        timed(small, 3)
        trial = torch.zeros(_MIN_BYTES // _FLOAT, device=where)
        timed(trial, 1)
        wanted = _MIN_BYTES * _ROUND_S / max(timed(trial, 2), 1e-6)
        chosen = torch.tensor([wanted], device=where)
        group.broadcast(chosen, 0)
        count = int(min(max(float(chosen.item()), _MIN_BYTES), _MAX_BYTES[backend])) // _FLOAT
        large = torch.ones(count, device=where)
        group.all_reduce(large)
        if not bool((large == size).all()):
            raise HostError(f"rank {rank}: a sum over all hosts was wrong")
        large.zero_()
        seconds = timed(large, _ROUNDS)
        latency = timed(small, _SMALL_ROUNDS)
        group.barrier(**alone)
    finally:
        group.destroy_process_group()
    size_bytes = count * _FLOAT
    return {
        "backend": backend,
        "bandwidth_bytes_s": size_bytes / seconds * 2 * (size - 1) / size,
        "latency_s": latency,
        "bytes": size_bytes,
    }
