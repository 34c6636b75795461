"""Processors and NUMA nodes: py-cpuinfo names the CPU, /proc and /sys have the rest."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.contract.numbers import parse_int, parse_leading_decimal
from kimi_prov.on_host.probe import amx
from kimi_prov.on_host.system.machine import Machine, parse_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from kimi_prov.contract.documents.facts.machine import CpuFacts, NodeFacts, NumaFacts

# The CPU features that engines and weight formats require, by the kernel's names.
ISA = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512_vnni",
    "avx512vbmi",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    # ARM
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)
_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_FREQUENCY = f"{_CPU}/cpu0/cpufreq"
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KiB": 1 << 10, "M": 1 << 20, "MiB": 1 << 20,
          "GiB": 1 << 30}  # fmt: skip
# Below this share of the total, nodes show only what a virtual machine has touched so far.
_SHOWN = 0.9

# Family and model -> design: virtual machines say only "Intel(R) Xeon(R) Processor".
# A range of models where AMD numbers the steppings of one design.
_DESIGNS: tuple[tuple[str, int, int, int, str], ...] = (
    ("GenuineIntel", 6, 85, 85, "Skylake, Cascade Lake or Cooper Lake"),
    ("GenuineIntel", 6, 106, 106, "Ice Lake"),
    ("GenuineIntel", 6, 108, 108, "Ice Lake"),
    ("GenuineIntel", 6, 143, 143, "Sapphire Rapids"),
    ("GenuineIntel", 6, 173, 174, "Granite Rapids"),
    ("GenuineIntel", 6, 175, 175, "Sierra Forest"),
    ("GenuineIntel", 6, 207, 207, "Emerald Rapids"),
    ("AuthenticAMD", 23, 0x30, 0x3F, "Zen 2"),
    ("AuthenticAMD", 25, 0x00, 0x0F, "Zen 3"),
    ("AuthenticAMD", 25, 0x10, 0x1F, "Zen 4"),
    ("AuthenticAMD", 25, 0xA0, 0xAF, "Zen 4c"),
    ("AuthenticAMD", 26, 0x00, 0x0F, "Zen 5"),
    ("AuthenticAMD", 26, 0x10, 0x1F, "Zen 5c"),
)


def describe_cpu(machine: Machine) -> CpuFacts:
    """Return model, counts and instruction sets of the CPUs that a process here may use."""
    named = {**read_proc_cpuinfo(machine), **read_py_cpuinfo(machine)}
    flags = set(named["flags"])
    online = list_online_cpus(machine)
    usable = set(online)
    topology = [_find_core(machine, number) for number in online]
    known = [place for place in topology if place is not None]
    complete = bool(known) and len(known) == len(online)
    sockets = len({place["socket"] for place in known}) if complete else None
    cores = len({place["first"] for place in known}) if complete else None
    found_caches = describe_caches(machine, len(online))
    vendor, family, number = named["vendor"], named["family"], named["model_number"]
    shared = describe_clusters(machine, vendor, sockets, flags)
    return {
        "model": named["model"],
        "vendor": vendor,
        "microarchitecture": find_design(vendor, family, number),
        "family": family,
        "model_number": number,
        "stepping": named["stepping"],
        "sockets": sockets,
        "cores": cores,
        "threads": len(online) or None,
        "isa": [name for name in ISA if name in flags] if flags else None,
        "online": format_list(online) or None,
        # One thread of each core: engines count cores, and a second thread only slows the first.
        "primary": format_list([p["first"] for p in known if p["first"] in usable])
        if complete
        else None,
        "amx_permission": amx.read_permission() if machine.live else None,
        "smt": _has_smt(machine, cores, len(online)),
        "governor": machine.read(f"{_FREQUENCY}/scaling_governor"),
        "caches": found_caches,
        # Not py-cpuinfo's value: on AMD that is the L2 cache of one core.
        "l3_bytes": (found_caches or {}).get("l3_bytes"),
        "nodes_per_socket": shared["nodes_per_socket"],
        "snc": shared["snc"],
        "nps": shared["nps"],
        # Not py-cpuinfo's value: where the name has no frequency, that is the clock of the moment.
        "frequency_hz": _find_frequency_hz(machine, named["model"]),
    }


def read_proc_cpuinfo(machine: Machine) -> dict[str, Any]:
    """Return the names, numbers and flags of the first CPU in /proc/cpuinfo."""
    first = parse_fields((machine.read("/proc/cpuinfo") or "").split("\n\n")[0], ":")
    return {
        "model": first.get("model name"),
        "vendor": first.get("vendor_id"),
        "family": parse_int(first.get("cpu family")),
        "model_number": parse_int(first.get("model")),
        "stepping": parse_int(first.get("stepping")),
        "flags": (first.get("flags") or first.get("Features") or "").split(),
    }


def read_py_cpuinfo(machine: Machine) -> dict[str, Any]:
    """Return the same from py-cpuinfo, as far as it knows; it reads only the live machine."""
    if not machine.live:
        return {}
    try:
        with _import_cpuinfo() as cpuinfo:
            read: dict[str, Any] = cpuinfo.get_cpu_info()
    except Exception:  # noqa: BLE001  (/proc/cpuinfo has what is needed)
        return {}
    found = {
        "model": read.get("brand_raw"),
        "vendor": read.get("vendor_id_raw"),
        "family": read.get("family"),
        "model_number": read.get("model"),
        "stepping": read.get("stepping"),
        "flags": read.get("flags"),
    }
    return {key: value for key, value in found.items() if value is not None}


@contextmanager
def _import_cpuinfo() -> Iterator[ModuleType]:
    """Run py-cpuinfo in this process, without its timing of the processor of over a second.

    It starts its own file again unless `sys.frozen` says that the program is a bundle, in which no
    such file exists; the same is true of a zipapp.
    """
    from cpuinfo import cpuinfo  # noqa: PLC0415  (bundled in the zipapp; may be missing)

    timed, cpuinfo.DataSource.can_cpuid = cpuinfo.DataSource.can_cpuid, False
    vars(sys)["frozen"] = True
    try:
        yield cpuinfo
    finally:
        cpuinfo.DataSource.can_cpuid = timed
        del vars(sys)["frozen"]


def _find_frequency_hz(machine: Machine, model: str | None) -> int | None:
    """Return the frequency in the CPU's name, in Hz; else the highest that the driver allows."""
    named = re.search(r"@ ([\d.]+)GHz", model or "")
    gigahertz = parse_leading_decimal(named.group(1)) if named else None
    if gigahertz is not None:
        return round(gigahertz * 1e9)
    khz = machine.read_int(f"{_FREQUENCY}/cpuinfo_max_freq")
    return khz * 1000 if khz else None


def list_online_cpus(machine: Machine) -> list[int]:
    """Return CPUs that are online and, on the live machine, that this process may use."""
    online = parse_list(machine.read(f"{_CPU}/online"))
    if not machine.live:
        return online
    allowed = os.sched_getaffinity(0)
    return [number for number in online if number in allowed] or sorted(allowed)


def _sum_available(sizes: dict[str, str]) -> int | None:
    """Return the bytes of a node that a process could get: free, or page cache without tmpfs."""
    free = _parse_kilobytes(sizes.get("MemFree"))
    if free is None:
        return None
    files = (_parse_kilobytes(sizes.get("FilePages")) or 0) - (
        _parse_kilobytes(sizes.get("Shmem")) or 0
    )
    return free + max(0, files) + (_parse_kilobytes(sizes.get("SReclaimable")) or 0)


def describe_numa(machine: Machine) -> NumaFacts:
    """Return NUMA nodes with memory or CPUs; an empty list where the kernel lists none."""
    allowed = set(list_online_cpus(machine))
    nodes: list[NodeFacts] = []
    for path in machine.glob(f"{_NODE}/node[0-9]*"):
        info = parse_fields(machine.read(f"{path}/meminfo"), ":")
        sizes = {key.split()[-1]: value for key, value in info.items()}
        listed = parse_list(machine.read(f"{path}/cpulist"))
        cpus = [n for n in listed if n in allowed]
        size = _parse_kilobytes(sizes.get("MemTotal"))
        nodes.append(
            {
                "id": int(path.rsplit("node", 1)[1]),
                "cpus": format_list(cpus),
                # Of the others `node_kinds` finds the kind, by the GPUs and the processor.
                "kind": "ddr" if listed and size != 0 else None,
                "memory_total_bytes": size,
                "memory_free_bytes": _parse_kilobytes(sizes.get("MemFree")),
                "memory_available_bytes": _sum_available(sizes),
                "distances": [
                    number
                    for word in (machine.read(f"{path}/distance") or "").split()
                    if (number := parse_int(word)) is not None
                ],
            }
        )
    return {
        "nodes": sorted(nodes, key=lambda node: node["id"]),
        "memory_grows": _is_growing(machine, nodes),
    }


def _is_growing(machine: Machine, nodes: list[NodeFacts]) -> bool | None:
    """Return whether the nodes show far less than the total: a virtual machine with ballooning."""
    total = _parse_kilobytes(parse_fields(machine.read("/proc/meminfo"), ":").get("MemTotal"))
    sizes = [node["memory_total_bytes"] for node in nodes]
    shown = [size for size in sizes if size is not None]
    if not total or not shown or len(shown) < len(sizes):
        return None
    return sum(shown) < total * _SHOWN


def describe_clusters(
    machine: Machine, vendor: str | None, sockets: int | None, flags: set[str]
) -> dict[str, int | None]:
    """Return nodes with CPUs for each socket, and the firmware's name: Intel's SNC, AMD's NPS.

    The nodes of a virtual machine are its hypervisor's choice and say nothing about the firmware.
    """
    with_cpus = [p for p in machine.glob(f"{_NODE}/node[0-9]*") if machine.read(f"{p}/cpulist")]
    even = bool(sockets and with_cpus and len(with_cpus) % sockets == 0)
    each = len(with_cpus) // sockets if sockets and even else None
    bare = "hypervisor" not in flags
    return {
        "nodes_per_socket": each,
        "snc": each if bare and vendor == "GenuineIntel" else None,
        "nps": each if bare and vendor == "AuthenticAMD" else None,
    }


def find_design(vendor: str | None, family: int | None, model: int | None) -> str | None:
    """Return the microarchitecture by vendor, family and model number."""
    if family is None or model is None:
        return None
    for maker, number, first, last, name in _DESIGNS:
        if (maker, number) == (vendor, family) and first <= model <= last:
            return name
    return None


def describe_caches(machine: Machine, threads: int) -> dict[str, int | None] | None:
    """Return the bytes of each cache level in total, and the parts of the last level."""
    found: dict[str, int | None] = {}
    for path in machine.glob(f"{_CPU}/cpu0/cache/index[0-9]*"):
        level = machine.read(f"{path}/level")
        kind = {"Data": "d", "Instruction": "i"}.get(machine.read(f"{path}/type") or "", "")
        size = _parse_bytes(machine.read(f"{path}/size"))
        sharing = len(parse_list(machine.read(f"{path}/shared_cpu_list")))
        if size is not None and sharing:
            parts = max(1, round(threads / sharing))
            found[f"l{level}{kind}_bytes"] = size * parts
            found[f"l{level}{kind}_instances"] = parts
    if found:
        return found
    for key, value in read_lscpu(machine).items():
        match = re.fullmatch(r"L(\d[di]?) cache", key)
        sized = re.match(r"([\d.]+ \w+)(?: \((\d+) instances?\))?", value)
        if match and sized:
            found[f"l{match.group(1)}_bytes"] = _parse_bytes(sized.group(1))
            found[f"l{match.group(1)}_instances"] = parse_int(sized.group(2))
    return found or None


def read_lscpu(machine: Machine) -> dict[str, str]:
    """Parse `lscpu -J`: values by name; empty where lscpu is not available."""
    found: dict[str, str] = {}
    try:
        rows = list(json.loads(machine.run(["lscpu", "-J"]) or "{}")["lscpu"])
        while rows:
            row = rows.pop(0)
            found.setdefault(str(row["field"]).rstrip(":"), str(row.get("data") or ""))
            # Since version 2.40 rows are nested in groups.
            rows += row.get("children") or []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found


def _has_smt(machine: Machine, cores: int | None, threads: int) -> bool | None:
    active = machine.read("/sys/devices/system/cpu/smt/active")
    if active in ("0", "1"):
        return active == "1"
    return threads > cores if cores else None


def _parse_bytes(text: str | None) -> int | None:
    """Return `48K` and `300 MiB` as bytes."""
    match = re.fullmatch(r"([\d.]+)\s*(\w*)", text or "")
    number = parse_leading_decimal(match.group(1)) if match else None
    if match is None or number is None or match.group(2) not in _UNITS:
        return None
    return round(number * _UNITS[match.group(2)])


def _find_core(machine: Machine, number: int) -> dict[str, int] | None:
    """Return the socket of a CPU and the first thread of its core."""
    base = f"{_CPU}/cpu{number}/topology"
    socket = machine.read_int(f"{base}/physical_package_id")
    first = _find_first(machine.read(f"{base}/thread_siblings_list"))
    return None if socket is None or first is None else {"socket": socket, "first": first}


@cache
def _find_first(siblings: str | None) -> int | None:
    """Return the list of threads, which is the same for every thread of a core."""
    return next(iter(parse_list(siblings)), None)


def _parse_kilobytes(text: str | None) -> int | None:
    """Return `123 kB` as bytes."""
    words = (text or "").split()
    number = parse_int(words[0]) if words else None
    return None if number is None else number * 1024
