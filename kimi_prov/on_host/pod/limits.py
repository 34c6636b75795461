"""Checks whether the pod's limits are enough for the plan: memory, /dev/shm, processors, GPUs.

A refusal with a figure before the start is better than a kill by the kernel after half an hour.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import pod
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.engine import placement
from kimi_prov.on_host.probe import memory
from kimi_prov.on_host.system.machine import Machine, parse_fields
from kimi_prov.on_host.system.process import NOT_FOUND, run

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan

_MANIFEST = "statefulset.yaml or leaderworkerset.yaml"
# Bytes of the engine's own process and its web server.
_SPARE_CPUS = 1


@dataclass(frozen=True)
class Given:
    """The limits of a pod. Sizes in bytes; None where there is no limit, or it is unknown."""

    memory: int | None
    shm: int | None
    cpus: float
    gpus: int | None


def read_limits(root: str = "/") -> Given:
    """Read the limits of the container's cgroup, and what the container sees."""
    machine = Machine(root)
    found = memory.read_cgroup(machine)
    total = _read_total_memory(machine)
    limits = [size for size in (found["memory_bytes"], total) if size is not None]
    allowed = len(placement.list_available_cpus())
    cpus = min(float(allowed), found["cpus"] or float(allowed))
    return Given(min(limits, default=None), _read_shm(machine), cpus, _count_gpus())


def _read_total_memory(machine: Machine) -> int | None:
    words = parse_fields(machine.read("/proc/meminfo"), ":").get("MemTotal", "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _read_shm(machine: Machine) -> int | None:
    try:
        state = os.statvfs(machine.path(pod.SHM))
    except OSError:
        return None
    return state.f_frsize * state.f_blocks


def _count_gpus() -> int | None:
    """Count the GPUs that the container sees; None without nvidia-smi."""
    done = run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", timeout=120)
    if done.returncode == NOT_FOUND:
        return None
    rows = done.stdout.splitlines() if done.returncode == 0 else []
    return sum(row.strip().startswith("GPU-") for row in rows)


def list_refusals(plan: MachinePlan, has: Given) -> list[str]:
    """Return what is too small for the plan, each with figure and fix. Has no effects."""
    found: list[str] = []
    shm = pod.compute_shm_bytes(plan)
    needed = pod.compute_process_bytes(plan) + shm
    if has.memory is not None and has.memory < needed:
        found.append(
            f"the container may use {format_bytes(has.memory)} of memory, and the engine needs "
            f"{format_bytes(needed)}, {format_bytes(shm)} of it in {pod.SHM}; raise limits.memory "
            f"in {_MANIFEST}, or take a larger node"
        )
    if has.shm is not None and has.shm < shm:
        found.append(
            f"{pod.SHM} has {format_bytes(has.shm)}, and the engine's processes need "
            f"{format_bytes(shm)}; mount an emptyDir with medium Memory and that sizeLimit there"
        )
    planned = len(plan["instances"][0]["gpus"])
    if planned and has.gpus is None:
        found.append(
            f"nvidia-smi is not in the container, and the engine is planned for {planned} GPUs: "
            "the driver is mounted at no path of PATH; ask for GPUs in resources.limits of "
            f"{_MANIFEST}, and check where the node's device plugin or runtime mounts it"
        )
    elif has.gpus is not None and has.gpus < planned:
        found.append(
            f"the container sees {has.gpus} GPUs, and the engine is planned for {planned}; ask for "
            f"them in resources.limits of {_MANIFEST}, and check that the node's device plugin runs"
        )
    least = planned + _SPARE_CPUS if planned else 1
    if has.cpus < least:
        found.append(
            f"the container has the time of {has.cpus:g} processors, and the engine needs {least} "
            f"at least; raise limits.cpu in {_MANIFEST}"
        )
    return found
