"""Complete a recording's facts by what only collected outputs have, and tell what is missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract import gpu_rows
from kimi_prov.on_host.probe import nvidia_smi

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts
    from kimi_prov.contract.documents.facts.recorded import RecordedPart
    from kimi_prov.facts.dumps.collection import Collected
    from kimi_prov.facts.dumps.gpus import Row

# Outputs that tell whether there are GPUs, also where there are none.
_TELL_GPUS = frozenset(
    ("xml", "csv", "rows", "query", "table", "list", "topology", "no_gpu", "lspci", "rocm",
     "rocm_json", "amd_static", "amd_table", "pci.txt", "nvidia-smi-nvlink-s.txt", "monitor",
     "habana", "scontrol", "slurm_json", "sinfo", "kube_node", "kube_json", "rocminfo", "ggml",
     "lshw")
)  # fmt: skip
_GRACE = re.compile(r"\bG[HB](\d)00\b")
# The memory of a Grace processor in GiB, of which a GB machine has one for two GPUs.
_GRACE_GIB = 480
# GPUs that come with a processor of their own, an ARM one.
_SUPERCHIP = re.compile(r"\b(?:GB10|GH200|GB[23]00)\b")
_X86 = re.compile(r"\b(lm|sse2|avx2)\b")


def complete(facts: Facts, collected: Collected) -> None:
    """Add GPUs, disks, cards and the architecture; then list what nothing tells."""
    _complete_host(facts, collected)
    _sum_nodes(facts)
    _complete_gpus(facts, collected.gpus, collected.driver)
    facts["disks"] = facts.get("disks") or collected.disks
    facts["nics"] = facts.get("nics") or collected.nics
    _leave_out_grace_memory(facts)
    facts["recorded"] = {
        "read": collected.read,
        "not_told": _list_missing(facts, collected),
        "damaged": collected.damaged,
        "skipped": collected.skipped[:50],
    }


def _complete_host(facts: Facts, collected: Collected) -> None:
    host, cpuinfo = facts["host"], collected.texts.get("cpuinfo.txt", "")
    host["arch"] = host.get("arch") or collected.arch or _find_arch(cpuinfo, collected)
    rows = collected.gpus
    if any(_SUPERCHIP.search(row.get("name", "")) for row in rows):
        host["arch"] = "aarch64"
        if not facts["cpu"]["model"] and not any("GB10" in row.get("name", "") for row in rows):
            facts["cpu"]["model"] = "NVIDIA Grace"
    host["kernel"] = host.get("kernel") or collected.kernel
    facts["cpu"]["sockets"] = facts["cpu"].get("sockets") or collected.sockets


def _find_arch(cpuinfo: str, collected: Collected) -> str | None:
    """Tell the architecture by the flags of a processor, or by the driver's build."""
    driver = collected.texts.get("nvidia-version.txt", "")
    if "CPU implementer" in cpuinfo or "for aarch64" in driver:
        return "aarch64"
    return "x86_64" if _X86.search(cpuinfo) or "for x86_64" in driver else None


def _complete_gpus(facts: Facts, rows: list[Row], driver: str | None) -> None:
    """Add what the table has beside the columns of the probe, and GPUs that are not NVIDIA's."""
    gpus = facts["gpus"]
    foreign = [row for row in rows if row.get("vendor") == "amd"]
    if foreign:
        gpus[:] = [gpu for gpu in gpus if gpu["vendor"] == "amd"] or [
            _make_amd(index, row) for index, row in enumerate(foreign)
        ]
        return
    by_index = {row.get("index"): row for row in rows}
    for gpu in gpus:
        row = by_index.get(str(gpu["index"]), {})
        for key, column in (("mig", "mig.mode.current"), ("mig_pending", "mig.mode.pending")):
            if gpu.get(key) is None:
                gpu[key] = nvidia_smi.parse_switch(row.get(column))  # type: ignore[literal-required]
    nvidia = facts["nvidia"]
    version = next((row["driver_version"] for row in rows if row.get("driver_version")), driver)
    if nvidia and version and re.fullmatch(r"\d{3}(\.\d+){1,2}", version):
        nvidia["driver_loaded"] = nvidia["driver_loaded"] or version


def _make_amd(index: int, row: Row) -> GpuFacts:
    size = nvidia_smi.parse_mebibytes(row.get("memory.total"))
    return {
        **gpu_rows.make_gpu_row(index, "amd", row.get("name"), size),
        "pci": row.get("pci.bus_id"),
    }


def _sum_nodes(facts: Facts) -> None:
    """Take the memory of all nodes of the host where nothing tells the machine's."""
    nodes = [node for node in facts["numa"]["nodes"] if node.get("kind") in (None, "ddr")]
    sizes = [node.get("memory_total_bytes") or 0 for node in nodes]
    if facts["memory"]["total_bytes"] is None and any(sizes):
        facts["memory"]["total_bytes"] = sum(sizes)
        facts["origins"]["memory.total_bytes"] = "the sizes of the NUMA nodes"


def _leave_out_grace_memory(facts: Facts) -> None:
    """Take the GPUs' memory from MemTotal of a Grace machine whose nodes nobody recorded.

    More than its processors can have means that MemTotal counts the GPUs' memory.
    """
    memory, gpus = facts["memory"], facts["gpus"]
    total = memory["total_bytes"]
    if total is None or any(row.get("memory_total_bytes") for row in facts["numa"]["nodes"]):
        return
    names = [_GRACE.search(gpu_rows.get_gpu_name(gpu) or "") for gpu in gpus]
    sizes = [gpu_rows.get_gpu_memory(gpu) or 0 for gpu in gpus]
    if not names or None in names or not all(sizes):
        return
    hopper = any(match and match[0].startswith("GH") for match in names)
    processors = len(gpus) if hopper else (len(gpus) + 1) // 2
    named = re.search(r"GH\d00 (\d{3})GB", gpu_rows.get_gpu_name(gpus[0]) or "")
    most = processors * (int(named[1]) if named else _GRACE_GIB) << 30
    if most * 1.03 < total and total > sum(sizes):
        memory["total_bytes"] = total - sum(sizes)
        memory["other_bytes"] = {"gpu": sum(sizes)}
        facts["origins"]["memory.total_bytes"] = "MemTotal without the GPUs' memory"


def _list_missing(facts: Facts, collected: Collected) -> list[RecordedPart]:
    knows_gpus = bool(collected.kinds & _TELL_GPUS) or bool(facts["gpus"])
    nvidia = facts["nvidia"]
    there: dict[RecordedPart, bool] = {
        "processor": facts["cpu"]["model"] is not None or facts["cpu"].get("family") is not None,
        "instructions": facts["cpu"]["isa"] is not None,
        "memory": facts["memory"]["total_bytes"] is not None,
        "NUMA nodes": bool(facts["numa"]["nodes"]),
        "GPUs": knows_gpus,
        "NVIDIA driver": not (knows_gpus and facts["gpus"])
        or any(gpu["vendor"] != "nvidia" for gpu in facts["gpus"])
        or bool(nvidia and (nvidia["driver_loaded"] or nvidia["driver_installed"])),
        "operating system": facts["host"]["os"].get("id") is not None,
        "disks": bool(facts.get("disks")),
    }
    return [part for part, known in there.items() if not known]
