"""`probe --measure`: how fast memory, disk, hashing and GPUs are here; each within a time limit.

Nothing is written but a compiled program in a temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.on_host.probe import gpu_measure
from kimi_prov.on_host.probe.memory_kernel import SOURCE
from kimi_prov.on_host.system.process import run as run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.machine import MemoryBandwidth
    from kimi_prov.contract.documents.facts.measured import (
        MeasuredDisk,
        MeasuredFacts,
        MeasuredMemory,
        MeasuredNode,
        MeasuredRate,
    )
    from kimi_prov.on_host.system.machine import Machine

# Runnable processes per core above which they would distort a measurement.
_BUSY = 0.5
_COMPILERS = ("cc", "gcc", "clang")
_READING_S = 1.0
_COMPILING_S = 30.0
_PER_RUN_S = 15.0
_DISK_S = 3.0
_HASHING_S = 0.7
# Larger than the last cache, so that memory is measured and not the cache.
_CACHES = 4
_MIN_BYTES = 256 << 20
_SHARE_OF_FREE = 8
_BLOCK = 8 << 20
_READERS = 4
_MIN_FILE_BYTES = 64 << 20
_LOOKING_S = 1.0
_BIG_FILES = ("/usr/lib", "/boot", "/opt")


def measure(machine: Machine, facts: Facts) -> MeasuredFacts:
    """Measure all; what could not be measured is null, with the reason."""
    load = os.getloadavg()[0]
    return {
        "load": round(load, 2),
        "busy": is_busy(load, facts),
        "memory": measure_memory(machine, facts),
        "disk": measure_disk(facts),
        "sha256": measure_sha256(),
        "gpus": gpu_measure.measure(machine, facts),
    }


def is_busy(load: float, facts: Facts) -> bool:
    """Return whether so many processes are runnable that they would distort a measurement."""
    cores = facts["cpu"]["cores"] or facts["cpu"]["threads"] or 1
    return bool(load > _BUSY * cores)


def apply(facts: Facts, found: MeasuredFacts) -> None:
    """Write measurements to the keys that the planner reads: they override the catalogue.

    What was measured beside other work is reported only under `measured`.
    """
    facts["measured"] = found
    if found["busy"]:
        return
    speed = (found["memory"] or {}).get("bytes_per_s")
    if speed:
        known: MemoryBandwidth = facts["memory"]["bandwidth_bytes_per_s"] or {}
        facts["memory"]["bandwidth_bytes_per_s"] = {**known, "measured": speed}
        facts["origins"]["memory.bandwidth_bytes_per_s.measured"] = "measured"
    disks, reading = facts["disks"], (found["disk"] or {}).get("bytes_per_s")
    if reading and len(disks) == 1:
        disks[0]["read_bytes_per_s"] = reading
        facts["origins"]["disks[0].read_bytes_per_s"] = "measured"
    gpu_measure.apply(facts, found.get("gpus") or [])


def measure_memory(machine: Machine, facts: Facts) -> MeasuredMemory:
    """Read memory with a thread on every core: of all nodes at once, and of each alone."""
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="kimi-probe-")
    in_memory = contextlib.ExitStack()
    try:
        compiled, reason = _compile(machine, folder)
        if compiled is None:
            return {"bytes_per_s": None, "seconds": None, "reason": reason, "nodes": []}
        program = in_memory.enter_context(_copy_to_memory(compiled))
        free = facts["memory"]["available_bytes"] or 8 * _MIN_BYTES
        size = max(_MIN_BYTES, _CACHES * (facts["cpu"]["l3_bytes"] or 0))
        size = min(size, free // _SHARE_OF_FREE)
        primary = parse_list(facts["cpu"]["primary"]) or parse_list(facts["cpu"]["online"])
        whole = _run(program, primary, size)
        nodes: list[MeasuredNode] = []
        groups = [(node["id"], parse_list(node["cpus"])) for node in facts["numa"]["nodes"]]
        for number, cpus in groups if len(groups) > 1 else []:
            own = [cpu for cpu in primary if cpu in cpus]
            share = size // max(1, len(groups))
            nodes.append({"id": number, "bytes_per_s": _run(program, own, share) if own else None})
        if len(groups) == 1:
            nodes = [{"id": groups[0][0], "bytes_per_s": whole}]
    except OSError as error:
        reason = f"the program cannot run: {error.strerror}"
        return {"bytes_per_s": None, "seconds": None, "reason": reason, "nodes": []}
    finally:
        in_memory.close()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "bytes_per_s": whole,
        "seconds": round(time.monotonic() - started, 2),
        "reason": None if whole else "the program did not end in time",
        "nodes": nodes,
    }


def _compile(machine: Machine, folder: str) -> tuple[str | None, str]:
    """Build the reader. Return its path, or None and the reason."""
    compiler = next((path for path in map(machine.which, _COMPILERS) if path), None)
    if compiler is None:
        return None, "no C compiler (cc) is installed"
    source, program = os.path.join(folder, "read.c"), os.path.join(folder, "read")
    with open(source, "w", encoding="utf-8") as stream:
        stream.write(SOURCE)
    # The flags that a compiler for another processor does not know are left out.
    for options in (["-march=native"], []):
        argv = [compiler, "-O3", *options, "-o", program, source, "-lpthread"]
        if run_program(*argv, timeout=_COMPILING_S, cwd=folder).returncode == 0:
            return program, ""
    return None, f"{compiler} could not compile the program"


@contextlib.contextmanager
def _copy_to_memory(program: str) -> Iterator[str]:
    """Return the path of a copy in memory without a file: /tmp may be mounted noexec."""
    with open(os.memfd_create("kimi-read"), "wb") as copy:
        with open(program, "rb") as source:
            shutil.copyfileobj(source, copy)
        # A file that is open for writing cannot be executed.
        descriptor = os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDONLY)
    try:
        # The path goes through our own process: the program itself inherits no descriptor.
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _run(program: str, cpus: list[int], size: int) -> int | None:
    """Return the bytes a second that threads on these CPUs read of `size` bytes together."""
    argv = [program, str(_READING_S), str(size // len(cpus)), *map(str, cpus)]
    text = run_program(*argv, timeout=_PER_RUN_S).stdout.strip()
    return round(float(text)) if re.fullmatch(r"\d+(\.\d+)?", text) and float(text) else None


def measure_sha256() -> MeasuredRate:
    """Return the bytes a second that one core hashes, which is the speed of verifying weights."""
    block = memoryview(bytearray(_BLOCK))
    digest = hashlib.sha256()
    started = time.monotonic()
    taken = 0
    while time.monotonic() - started < _HASHING_S:
        digest.update(block)
        taken += len(block)
    seconds = time.monotonic() - started
    return {"bytes_per_s": round(taken / seconds), "seconds": round(seconds, 2), "reason": None}


def measure_disk(facts: Facts) -> MeasuredDisk:
    """Read from end to end, past the page cache: a model's file, else the disk, else a large file.

    The disk of the weights is meant; where only another file can be read, `path` names it.
    """
    reason = "no file of 64 MiB or more can be read here, and the disk only by root"
    for path in _list_candidates(facts):
        try:
            return _read(path)
        except OSError as error:
            reason = f"{path}: {error.strerror}"
    return {
        "bytes_per_s": None,
        "seconds": None,
        "reason": reason,
        "path": None,
        "bytes": None,
        "direct": None,
    }


def _list_candidates(facts: Facts) -> list[str]:
    holding = (row for row in facts["filesystems"] if paths.ROOT in row.get("holds", []))
    device = next((row.get("device") for row in holding), None) or ""
    found = [_find_largest((paths.MODELS,)), device if device.startswith("/dev/") else None]
    found.append(_find_largest(_BIG_FILES))
    return [path for path in found if path]


def _find_largest(folders: tuple[str, ...]) -> str | None:
    """Return the largest file that we may read, as far as a short search finds it."""
    best: tuple[int, str | None] = (_MIN_FILE_BYTES, None)
    until = time.monotonic() + _LOOKING_S
    for top in folders:
        for folder, _, names in os.walk(top):
            if time.monotonic() > until:
                return best[1]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    found = os.lstat(path)
                except OSError:
                    continue
                larger = stat.S_ISREG(found.st_mode) and found.st_size > best[0]
                if larger and os.access(path, os.R_OK):
                    best = (found.st_size, path)
    return best[1]


def _read(path: str) -> MeasuredDisk:
    """Read several blocks at once, as loading weights does."""
    direct = True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_RDONLY)  # tmpfs and some network file systems.
        direct = False
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.monotonic()
        until = started + _DISK_S
        with ThreadPoolExecutor(_READERS) as pool:
            parts = [
                pool.submit(_read_part, descriptor, number, size, until)
                for number in range(_READERS)
            ]
            taken = sum(part.result() for part in parts)
        seconds = time.monotonic() - started
    finally:
        os.close(descriptor)
    return {
        "bytes_per_s": round(taken / seconds) if taken else None,
        "seconds": round(seconds, 2),
        "reason": None if taken else f"{path}: nothing could be read",
        "path": path,
        "bytes": taken,
        "direct": direct,
    }


def _read_part(descriptor: int, number: int, size: int, until: float) -> int:
    """Read every fourth block; the buffer is aligned, because reading past the cache needs it."""
    taken = 0
    with mmap.mmap(-1, _BLOCK) as buffer:
        for offset in range(number * _BLOCK, size - _BLOCK + 1, _READERS * _BLOCK):
            if time.monotonic() > until:
                break
            taken += os.preadv(descriptor, [buffer], offset)
    return taken
