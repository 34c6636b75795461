"""What the kernel lists as counters, and a count of its own that is there on every machine."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.status import perf

if TYPE_CHECKING:
    from pathlib import Path

# As the kernel lists a memory controller of a Xeon with two sockets.
CONTROLLER = {
    "type": "85\n",
    "cpumask": "0,56\n",
    "format/event": "config:0-7\n",
    "format/umask": "config:8-15\n",
    "events/cas_count_read": "event=0x05,umask=0xcf\n",
    "events/cas_count_read.scale": "6.103515625e-5\n",
    "events/cas_count_read.unit": "MiB\n",
    "events/cas_count_write": "event=0x05,umask=0xf0\n",
    "events/cas_count_write.scale": "6.103515625e-5\n",
    "events/cas_count_write.unit": "MiB\n",
}
SOFTWARE, CPU_CLOCK = 1, 0


def listed(root: Path, files: dict[str, str], folder: str) -> None:
    for name, content in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_each_controller_counts_on_one_processor_of_each_socket(tmp_path: Path) -> None:
    for number in (0, 1):
        listed(tmp_path, CONTROLLER, f"sys/bus/event_source/devices/uncore_imc_{number}")
    # It counts clock ticks alone, and has no such events.
    listed(tmp_path, {"type": "90\n"}, "sys/bus/event_source/devices/uncore_imc_free_running")
    reads, writes = perf.find_memory_counters(tmp_path)
    assert [(one.kind, one.config, one.cpu) for one in reads.counters] == [
        (85, 0xCF05, 0),
        (85, 0xCF05, 56),
    ] * 2
    assert writes.counters[0].config == 0xF005
    # A count is a line of 64 bytes.
    assert reads.counters[0].scale == 64.0


def test_a_machine_without_them_says_so(tmp_path: Path) -> None:
    sampler = perf.Sampler(str(tmp_path))
    sampler.start()
    try:
        found = sampler.read()
    finally:
        sampler.close()
    assert found["memory_read_bytes_per_s"] is None
    assert "uncore_imc" in found["memory_problem"]
    assert found["amx_busy_share"] is None
    assert found["amx_problem"] == "the processor has no AMX"


def test_amx_is_counted_on_every_processor_that_is_on(tmp_path: Path) -> None:
    listed(tmp_path, {"cpuinfo": "flags : fpu amx_tile amx_int8\n"}, "proc")
    listed(tmp_path, {"type": "4\n"}, "sys/bus/event_source/devices/cpu")
    listed(tmp_path, {"online": "0-2,5\n"}, "sys/devices/system/cpu")
    busy, cycles = perf.find_matrix_counters(tmp_path)
    assert [(one.kind, one.config, one.cpu) for one in busy.counters] == [
        (4, 0x02B7, cpu) for cpu in (0, 1, 2, 5)
    ]
    assert len(cycles.counters) == 4
    assert perf.count_descriptors(str(tmp_path)) == 8


def test_a_counter_that_the_kernel_refuses_is_told(tmp_path: Path) -> None:
    refused = perf.Group([perf.Counter(0x7FFFFFFF, 0, 0)])
    refused.open()
    assert refused.counters == []
    assert "the kernel refuses to count" in refused.problem


def test_a_count_of_the_kernels_own_grows() -> None:
    """The clock of a processor: the one count that needs no hardware, and root as all others."""
    counter = perf.Counter(SOFTWARE, CPU_CLOCK, 0)
    if os.geteuid() != 0:
        with pytest.raises(OSError, match=r"\w"):
            counter.open()
        return
    counter.open()
    try:
        first = counter.value()
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            sum(range(1000))
        assert counter.value() > first
    finally:
        counter.close()
    assert counter.descriptor == -1
