"""`probe --measure` of GPUs: finds the idle ones, and measures each in a process of its own.

Only NVIDIA's GPUs are measured, through the driver alone. A GPU that serves is left alone, and so
is a GPU whose state is unknown.

Decides: which GPU `--measure` may touch.
Held by: tests/component/on_host/probe/test_gpu_measure.py.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, cast

import kimi_prov
from kimi_prov.contract import gpu_rows, paths
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.numbers import parse_int
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.probe.cuda_child import ARENA, PINNED

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts, GpuSpeeds
    from kimi_prov.contract.documents.facts.measured import MeasuredGpu
    from kimi_prov.on_host.system.machine import Machine

# An idle GPU has some hundred MiB in use by its driver.
_IDLE_BYTES = 1 << 30
# The share of the machine's free memory that is pinned at most.
_SHARE_OF_FREE = 8
# Seconds that a process may take: some GPUs need several to wake, some libraries to be read.
_ALONE_S, _TOGETHER_S = 30.0, 60.0
# `-I` excludes the working folder and the user's own packages.
_START = "import sys; sys.path.insert(0, sys.argv[1])\n"
_START += "from kimi_prov.on_host.probe.cuda_child import main; main()"
# The paths of cuBLASLt in an environment of Python, and in a toolkit.
_LIBRARY = "libcublasLt.so.1[0-9]"
_IN_ENVIRONMENT = f"nvidia/*/lib/{_LIBRARY}"
_TOOLKITS = (f"/usr/local/cuda*/lib64/{_LIBRARY}", f"/usr/local/cuda*/targets/*/lib/{_LIBRARY}")
_MAX_LIBRARIES = 4
_FIRST_OF_PEOPLE = 1000
_QUERIES = {
    "memory": ["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"],
    "apps": ["nvidia-smi", "--query-compute-apps=gpu_uuid", "--format=csv,noheader"],
}
_MATRIX = ("bf16", "fp8")
_SPEEDS = ("memory", "copy", "copy_together")


def measure(machine: Machine, facts: Facts) -> list[MeasuredGpu]:
    """Return a row for each GPU; a missing figure is null, with the reason."""
    gpus = facts["gpus"]
    if not gpus:
        return []
    idle = list_refusals(machine, facts)
    libraries = list_cublas(machine) if not all(idle) else []
    rows = [
        _build_row(gpu, reason or _measure_alone(gpu, libraries)) for gpu, reason in zip(gpus, idle)
    ]
    _measure_together(gpus, rows)
    return rows


def apply(facts: Facts, rows: list[MeasuredGpu]) -> None:
    """Write figures to the keys of each GPU that the planner reads."""
    for place, (gpu, row) in enumerate(zip(facts["gpus"], rows)):
        found: GpuSpeeds = {
            "bandwidth_bytes_per_s": row["memory"]["bytes_per_s"],
            "copy_bytes_per_s": row["copy"]["bytes_per_s"],
            "copy_together_bytes_per_s": row["copy_together"]["bytes_per_s"],
            "bf16_flops_per_s": row["bf16"]["flops_per_s"],
            "fp8_flops_per_s": row["fp8"]["flops_per_s"],
        }
        if any(found.values()):
            gpu["measured"] = found
            facts["origins"][f"gpus[{place}].measured"] = "measured"


def list_refusals(machine: Machine, facts: Facts) -> list[str | None]:
    """Return, for each GPU, why it is not measured; None for an idle one."""
    used = _parse_used(machine.run(_QUERIES["memory"], timeout_s=60.0))
    apps = machine.run(_QUERIES["apps"], timeout_s=60.0)
    busy = set((apps or "").split())
    free = facts["memory"]["available_bytes"]
    reasons = []
    for gpu in facts["gpus"]:
        bytes_used = used.get(gpu.get("uuid"), gpu.get("memory_used_bytes"))
        reasons.append(find_refusal(gpu, bytes_used, serving=gpu.get("uuid") in busy, free=free))
    return reasons


def find_refusal(gpu: GpuFacts, used: int | None, *, serving: bool, free: int | None) -> str | None:
    """Return why a GPU is not measured. `used`: bytes of its memory; `free`: of the machine's."""
    if gpu["vendor"] != "nvidia":
        return "only NVIDIA's GPUs are measured"
    if gpu.get("mig"):
        return "it is cut into MIG instances"
    if serving:
        return "busy: a process computes on it"
    if used is None:
        return "nothing says whether it is idle: its memory in use is not known"
    return _describe_short_memory(gpu_rows.get_gpu_memory(gpu) or 0, used, free)


def _describe_short_memory(total: int, used: int, free: int | None) -> str | None:
    """Describe which memory is short, in bytes: used by others, or too small."""
    if used > _IDLE_BYTES:
        return f"busy: {format_bytes(used)} of its memory are in use"
    if total - used < 2 * ARENA:
        return f"only {format_bytes(max(0, total - used))} of its memory are free"
    if free is not None and free < PINNED * _SHARE_OF_FREE:
        return f"only {format_bytes(free)} of the machine's memory are free"
    return None


def _parse_used(text: str | None) -> dict[str | None, int]:
    """Return the bytes in use by UUID, as nvidia-smi lists them in MiB."""
    found: dict[str | None, int] = {}
    for line in (text or "").splitlines():
        uuid, _, size = (part.strip() for part in line.partition(","))
        number = parse_int(size)
        if number is not None:
            found[uuid] = number << 20
    return found


def list_cublas(machine: Machine) -> list[str]:
    """Return libraries of cuBLASLt, the engine's own first, that only root or we can write.

    A loaded library runs with our rights, which are often root's.
    """
    found = []
    for environment in (paths.ENGINE, f"{paths.ENGINES}/*"):
        found += glob.glob(f"{environment}/lib/python3*/site-packages/{_IN_ENVIRONMENT}")
    for line in (machine.run(["ldconfig", "-p"]) or "").splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow and name.split()[0].startswith("libcublasLt.so.1"):
            found.append(path.strip())
    for pattern in _TOOLKITS:
        found += sorted(glob.glob(pattern), reverse=True)
    for folder in sys.path:
        if folder.endswith("-packages"):
            found += glob.glob(f"{folder}/{_IN_ENVIRONMENT}")
    real = dict.fromkeys(os.path.realpath(path) for path in found)
    return [path for path in real if _is_trusted(path)][:_MAX_LIBRARIES]


def _is_trusted(path: str) -> bool:
    """Return whether only root and we can change a file and every folder above it."""
    owners = {0, os.geteuid()}
    groups = {0, os.getegid()}
    while True:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        writers = stat.S_IWOTH
        # Groups below 1000 belong to the system: Debian gives /usr/local to staff.
        if found.st_gid >= _FIRST_OF_PEOPLE and found.st_gid not in groups:
            writers |= stat.S_IWGRP
        shared = found.st_mode & writers and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in owners or shared:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def _measure_alone(gpu: GpuFacts, libraries: list[str]) -> list[dict[str, Any]]:
    config = {"together": False, "cpus": _list_near_cpus(gpu), "libraries": libraries}
    return _run_child(config, [_format_name(gpu)], _ALONE_S)


def _measure_together(gpus: list[GpuFacts], rows: list[MeasuredGpu]) -> None:
    """Copy at once to all GPUs that were measured alone, and add the result to their rows."""
    able = [place for place, row in enumerate(rows) if row["copy"]["bytes_per_s"]]
    if len(able) < 2:
        return
    config = {"together": True, "cpus": [_list_near_cpus(gpus[place]) for place in able]}
    lines = _run_child(config, [_format_name(gpus[place]) for place in able], _TOGETHER_S)
    rates = lines[0].get("bytes_per_s") or [None] * len(able)
    for place, rate in zip(able, rates):
        rows[place]["copy_together"] = {
            "bytes_per_s": rate,
            "seconds": lines[0].get("seconds"),
            "reason": lines[0]["reason"],
        }


def _build_row(gpu: GpuFacts, answer: Any) -> MeasuredGpu:  # noqa: ANN401
    """Return a GPU's row from the lines of its process, or from the reason for none."""
    lines = [{"part": None, "reason": answer}] if isinstance(answer, str) else answer
    by_part = {line["part"]: line for line in lines}
    # What ended the process early is the reason for all parts that were not reached.
    missing = by_part.get(None, {"reason": "it was not reached"})
    alone = {"reason": "there is only one GPU to measure", "seconds": None}
    by_part.setdefault("copy_together", missing if None in by_part else alone)
    row: dict[str, Any] = {"index": gpu["index"]}
    for part in (*_SPEEDS, *_MATRIX):
        line = by_part.get(part, missing)
        key = "flops_per_s" if part in _MATRIX else "bytes_per_s"
        row[part] = {name: line.get(name) for name in (key, "seconds", "reason")}
        if part in _MATRIX:
            row[part]["by"] = line.get("by")
    return cast("MeasuredGpu", row)


def _list_near_cpus(gpu: GpuFacts) -> list[int]:
    """Return the processors near a GPU that we may use."""
    ours = os.sched_getaffinity(0)
    return [cpu for cpu in parse_list(gpu.get("cpus") or "") if cpu in ours]


def _format_name(gpu: GpuFacts) -> str:
    return str(gpu.get("uuid") or gpu["index"])


def _run_child(config: dict[str, Any], visible: list[str], limit_s: float) -> list[dict[str, Any]]:
    """Run the measuring process; return its lines, and why it ended early if it did."""
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Nothing may be left in the user's folder.
        "CUDA_CACHE_DISABLE": "1",
    }
    root = os.path.dirname(kimi_prov.__path__[0])
    started = time.monotonic()
    # Written to a file: lines from before a hang or a crash are not lost.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        given.write(json.dumps(config).encode())
        given.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _START, root],
                stdin=given,
                stdout=out,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=limit_s,
                check=False,
            )
            reason = _describe_exit(done.returncode)
        except subprocess.TimeoutExpired:
            reason = f"it took more than {limit_s:.0f} s"
        except OSError as error:
            reason = f"{sys.executable} cannot be started: {error.strerror}"
        out.seek(0)
        lines = _parse_lines(out.read().decode("utf-8", "replace"))
    if reason or not lines:
        ended = reason or "the measuring process has no output"
        lines.append({"part": None, "reason": ended, "seconds": round(time.monotonic() - started)})
    return lines


def _describe_exit(status: int) -> str | None:
    if status < 0:
        return f"the driver or a library crashed the measuring process (signal {-status})"
    return f"the measuring process failed (exit status {status})" if status else None


def _parse_lines(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "part" in row:
            found.append(row)
    return found
