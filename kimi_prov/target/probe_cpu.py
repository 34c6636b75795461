"""Processors and NUMA nodes, from /proc/cpuinfo and /sys."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from kimi_prov.target.machine import Machine, fields, format_list, parse_list

# What engines and weight formats ask for, by the kernel's own names.
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
)
_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"


def cpu(machine: Machine) -> Dict[str, Any]:
    """Model, counts and instruction sets of the CPUs that a process here may run on."""
    first = fields((machine.read("/proc/cpuinfo") or "").split("\n\n")[0], ":")
    flags = set((first.get("flags") or first.get("Features") or "").split())
    online = online_cpus(machine)
    topology = [_place(machine, number) for number in online]
    known = [place for place in topology if place is not None]
    complete = bool(known) and len(known) == len(online)
    extra = _by_cpuinfo(machine)
    return {
        "model": first.get("model name") or extra.get("brand_raw"),
        "vendor": first.get("vendor_id") or extra.get("vendor_id_raw"),
        "family": _number(first.get("cpu family")),
        "model_number": _number(first.get("model")),
        "stepping": _number(first.get("stepping")),
        "sockets": len({place["socket"] for place in known}) if complete else None,
        "cores": len({place["first"] for place in known}) if complete else None,
        "threads": len(online) or None,
        "isa": [name for name in ISA if name in flags] if flags else None,
        "online": format_list(online) or None,
        # One thread of each core: engines count cores, and the second thread only gets in the way.
        "primary": format_list([p["first"] for p in known if p["first"] in online])
        if complete
        else None,
        "l3_bytes": extra.get("l3_cache_size"),
        "frequency_hz": extra.get("hz_advertised"),
    }


def online_cpus(machine: Machine) -> List[int]:
    """CPUs that are online and, on the live machine, that this process is allowed to use."""
    online = parse_list(machine.read(f"{_CPU}/online"))
    if not machine.live:
        return online
    allowed = os.sched_getaffinity(0)
    return [number for number in online if number in allowed] or sorted(allowed)


def numa(machine: Machine) -> Dict[str, Any]:
    """NUMA nodes that have memory or CPUs; an empty list where the kernel tells of none."""
    allowed = set(online_cpus(machine))
    nodes = []
    for path in machine.glob(f"{_NODE}/node[0-9]*"):
        info = fields(machine.read(f"{path}/meminfo"), ":")
        sizes = {key.split()[-1]: value for key, value in info.items()}
        cpus = [n for n in parse_list(machine.read(f"{path}/cpulist")) if n in allowed]
        nodes.append(
            {
                "id": int(path.rsplit("node", 1)[1]),
                "cpus": format_list(cpus),
                "memory_total_bytes": _kilobytes(sizes.get("MemTotal")),
                "memory_free_bytes": _kilobytes(sizes.get("MemFree")),
                "distances": [
                    int(word)
                    for word in (machine.read(f"{path}/distance") or "").split()
                    if word.isdigit()
                ],
            }
        )
    return {"nodes": sorted(nodes, key=lambda node: int(str(node["id"])))}


def _place(machine: Machine, number: int) -> Optional[Dict[str, int]]:
    """Socket of a CPU and the first thread of its core."""
    base = f"{_CPU}/cpu{number}/topology"
    socket = machine.read_int(f"{base}/physical_package_id")
    siblings = parse_list(machine.read(f"{base}/thread_siblings_list"))
    if socket is None or not siblings:
        return None
    return {"socket": socket, "first": siblings[0]}


def _by_cpuinfo(machine: Machine) -> Dict[str, Any]:
    """Return what py-cpuinfo adds: the cache in bytes and the advertised frequency in Hz.

    Its whole `get_cpu_info` takes over a second (it times the processor in child processes), so
    only its readers of /proc/cpuinfo and lscpu are asked.
    """
    if not machine.live:
        return {}
    try:
        from cpuinfo import cpuinfo  # noqa: PLC0415  (bundled in the zipapp; may be missing)

        found: Dict[str, Any] = dict(cpuinfo._get_cpu_info_from_lscpu() or {})
        found.update(cpuinfo._get_cpu_info_from_proc_cpuinfo() or {})
    except Exception:  # noqa: BLE001  (it adds; the kernel's files have told what is needed)
        return {}
    advertised = found.get("hz_advertised")
    found["hz_advertised"] = advertised[0] if isinstance(advertised, (tuple, list)) else None
    return found


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() else None


def _kilobytes(text: Optional[str]) -> Optional[int]:
    """`123 kB` as bytes."""
    word = (text or "").split()
    return int(word[0]) * 1024 if word and word[0].isdigit() else None
