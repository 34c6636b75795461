"""Memory bandwidth and AMX use by the kernel's performance counters, with perf_event_open alone.

Counted over all processors for the time between `start` and `read`, as root. Most virtual machines
and containers have no such counters: then the reason is reported, and nothing else changes. For
Intel's memory controllers (`uncore_imc_N`) the kernel lists the bytes read and written; AMD's
controllers list no such counters by name. The use of AMX comes from EXE.AMX_BUSY of Intel's cores:
Intel removed its counters of operations from its own lists for these processors.

Decides: what `status` samples of this moment (counters of the processor).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.status.activity import CounterRates

_DEVICES = "sys/bus/event_source/devices"
# The number of the system call, by machine.
_NUMBER = {"x86_64": 298, "aarch64": 241}
_CLOSE_ON_EXEC = 8
# The first published size of struct perf_event_attr; later fields are not used.
_ATTR = struct.Struct("=IIQQQQQIIQ")
# Read, with each count, the time for which it was enabled and the time for which it ran.
_TIMES = 1 | 2
# EXE.AMX_BUSY: event 0xb7, unit mask 0x02 (Sapphire Rapids and later); and cycles.
_AMX_BUSY = 0x02B7
_HARDWARE, _CYCLES = 0, 0
_LINE_BYTES = 64
_PAIR = re.compile(r"(\w+)=(0x[0-9a-fA-F]+|\d+)")
_BITS = re.compile(r"config:(\d+)(?:-(\d+))?")


@dataclass
class Counter:
    """One count: its type and configuration, the processor that has it, its scale to bytes."""

    kind: int
    config: int
    cpu: int
    scale: float = 1.0
    descriptor: int = -1

    def open(self) -> None:
        """Begin to count. Raises OSError."""
        self.descriptor = open_counter(self.kind, self.config, self.cpu)

    def value(self) -> float:
        """Return the count; where the kernel shared the counter, scaled to the whole time."""
        count, wanted, counted = struct.unpack("=QQQ", os.read(self.descriptor, 24))
        return count * wanted / counted * self.scale if counted else 0.0

    def close(self) -> None:
        """End it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass
class Group:
    """Counts of one kind that are summed, or why there are none."""

    counters: list[Counter] = field(default_factory=list)
    problem: str = ""

    def open(self) -> None:
        """Begin to count; one count that cannot be opened ends all."""
        try:
            for counter in self.counters:
                counter.open()
        except OSError as error:
            self.close()
            self.counters, self.problem = [], f"the kernel refuses to count: {error.strerror}"

    def sum(self) -> float:
        """Return all counts together."""
        return sum(counter.value() for counter in self.counters)

    def close(self) -> None:
        """End them."""
        for counter in self.counters:
            counter.close()


def open_counter(kind: int, config: int, cpu: int) -> int:
    """Open a count of one processor, over all processes, and return its descriptor.

    Raises OSError.
    """
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise OSError(0, "not known for this processor")
    attribute = ctypes.create_string_buffer(
        _ATTR.pack(kind, _ATTR.size, config, 0, 0, _TIMES, 0, 0, 0, 0), _ATTR.size
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    found = libc.syscall(
        ctypes.c_long(number),
        attribute,
        ctypes.c_int(-1),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


class Sampler:
    """Counts from `start` to `read`; `close` ends it in any case."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)
        self._reads, self._writes = find_memory_counters(self._root)
        self._busy, self._cycles = find_matrix_counters(self._root)
        self._began = 0.0

    @property
    def _groups(self) -> tuple[Group, ...]:
        return self._reads, self._writes, self._busy, self._cycles

    def start(self) -> None:
        """Begin to count."""
        for group in self._groups:
            group.open()
        self._began = time.monotonic()

    def read(self) -> CounterRates:
        """Return bytes a second and the share of AMX, each null with the reason."""
        took = max(1e-3, time.monotonic() - self._began)
        try:
            cycles = self._cycles.sum()
            counted = bool(self._reads.counters and self._writes.counters)
            busy = self._busy.sum() / cycles if self._busy.counters and cycles else None
            return {
                "memory_read_bytes_per_s": self._reads.sum() / took if counted else None,
                "memory_write_bytes_per_s": self._writes.sum() / took if counted else None,
                "memory_problem": (self._reads.problem or self._writes.problem) or None,
                "amx_busy_share": busy,
                "amx_problem": (self._busy.problem or self._cycles.problem) or None,
            }
        except (OSError, struct.error) as error:
            raise HostError(f"the counters cannot be read: {error}") from None

    def close(self) -> None:
        """End all counts."""
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.close()


def find_memory_counters(root: Path) -> tuple[Group, Group]:
    """Find the counters of bytes that were read from memory, and written to it."""
    controllers = sorted((root / _DEVICES).glob("uncore_imc_[0-9]*"))
    if not controllers:
        problem = "the kernel lists no counters of the memory controllers (uncore_imc)"
        return Group(problem=problem), Group(problem=problem)
    return tuple(  # type: ignore[return-value]
        Group([one for path in controllers for one in _list_controller_counters(path, name)])
        for name in ("cas_count_read", "cas_count_write")
    )


def _list_controller_counters(path: Path, name: str) -> list[Counter]:
    """Return the count of a controller for each socket: one processor of each has it."""
    event = read_text(path / "events" / name).strip()
    kind = read_text(path / "type").strip()
    if not event or not kind.isdigit():
        return []
    config = encode_event(
        event, {term.name: read_text(term) for term in (path / "format").glob("*")}
    )
    scale = _read_scale(path / "events", name)
    return [
        Counter(int(kind), config, cpu, scale) for cpu in _parse_cpus(read_text(path / "cpumask"))
    ]


def _read_scale(folder: Path, name: str) -> float:
    """Return the bytes of one count: the kernel gives MiB, else one count is a cache line."""
    unit = read_text(folder / f"{name}.unit").strip()
    try:
        scale = float(read_text(folder / f"{name}.scale"))
    except ValueError:
        return float(_LINE_BYTES)
    return scale * (1 << 20) if unit == "MiB" else float(_LINE_BYTES)


def encode_event(event: str, formats: dict[str, str]) -> int:
    """Return the configuration of an event such as `event=0x05,umask=0xcf`, by its formats."""
    config = 0
    for name, number in _PAIR.findall(event):
        bits = _BITS.match(formats.get(name, "").strip())
        if bits:
            config |= int(number, 0) << int(bits[1])
    return config


def find_matrix_counters(root: Path) -> tuple[Group, Group]:
    """Find the counters of cycles in which AMX is busy, and of all cycles."""
    if "amx_tile" not in read_text(root / "proc/cpuinfo"):
        problem = "the processor has no AMX"
        return Group(problem=problem), Group(problem=problem)
    kind = read_text(root / _DEVICES / "cpu/type").strip()
    if not kind.isdigit():
        problem = "the kernel lists no counters of the processor's cores"
        return Group(problem=problem), Group(problem=problem)
    cpus = _parse_cpus(read_text(root / "sys/devices/system/cpu/online"))
    return (
        Group([Counter(int(kind), _AMX_BUSY, cpu) for cpu in cpus]),
        Group([Counter(_HARDWARE, _CYCLES, cpu) for cpu in cpus]),
    )


def _parse_cpus(text: str) -> list[int]:
    """Parse `0,56` or `0-3,8-9`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def count_descriptors(root: str | None = None) -> int:
    """Return how many file descriptors the counters of a machine need."""
    groups = (*find_memory_counters(Path(root or "/")), *find_matrix_counters(Path(root or "/")))
    return sum(len(group.counters) for group in groups)
