"""The probe against the machine itself by another way."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from cpuinfo import cpuinfo

from kimi_prov.on_host.probe import cpu as probe_cpu
from kimi_prov.on_host.probe import network
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    import pytest

LIVE = Machine()


def test_cpus_are_what_psutil_says() -> None:
    cpu = probe_cpu.describe_cpu(LIVE)
    assert cpu["threads"] == len(psutil.Process().cpu_affinity() or [])


def test_the_kernel_and_py_cpuinfo_name_the_same_cpu() -> None:
    kernel, library = probe_cpu.read_proc_cpuinfo(LIVE), probe_cpu.read_py_cpuinfo(LIVE)
    assert {"model", "vendor", "flags"} <= library.keys()
    assert sorted(library.pop("flags")) == sorted(kernel.pop("flags"))
    assert library == {key: value for key, value in kernel.items() if value is not None}


def test_py_cpuinfo_is_left_as_it_was() -> None:
    timed = cpuinfo.DataSource.can_cpuid
    probe_cpu.read_py_cpuinfo(LIVE)
    assert cpuinfo.DataSource.can_cpuid == timed
    assert not hasattr(sys, "frozen")


EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9654 96-Core Processor
stepping\t: 1
cpu MHz\t\t: 1497.112
cache size\t: 1024 KB
flags\t\t: avx2 avx512f

"""


def test_neither_the_cache_of_a_core_nor_the_clock_of_the_moment_is_taken_from_py_cpuinfo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On AMD /proc/cpuinfo has the L2 as its cache, and the name tells no frequency."""
    for name, answer in {
        "has_proc_cpuinfo": lambda: True,
        "cat_proc_cpuinfo": lambda: (0, EPYC),
        "has_lscpu": lambda: False,
    }.items():
        monkeypatch.setattr(cpuinfo.DataSource, name, staticmethod(answer))
    cpu = probe_cpu.describe_cpu(LIVE)
    assert cpu["model"] == "AMD EPYC 9654 96-Core Processor"
    assert cpu["microarchitecture"] == "Zen 4"
    assert cpu["l3_bytes"] == (cpu["caches"] or {}).get("l3_bytes")
    highest = LIVE.read_int("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    assert cpu["frequency_hz"] == (highest * 1000 if highest else None)


def by_psutil() -> set[str]:
    """Addresses but loopback's and link-local ones."""
    return {
        a.address
        for rows in psutil.net_if_addrs().values()
        for a in rows
        if a.family.name in ("AF_INET", "AF_INET6")
        and not a.address.startswith(("127.", "fe80"))
        and a.address != "::1"
    }


def test_addresses_are_what_psutil_says() -> None:
    for _ in range(5):
        before = by_psutil()
        ours = set(network.describe_network(LIVE)["addresses"])
        if before == by_psutil():  # no lab host came or went meanwhile
            break
    assert ours == before


def test_listening_ports_are_what_psutil_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rows = network.describe_network(LIVE)["listening"]
        row = next(row for row in rows if row["port"] == port)
        assert row["address"] == "127.0.0.1"
        assert row["process"] == Path(f"/proc/{os.getpid()}/comm").read_text().strip()
