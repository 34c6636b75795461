"""Facts and settings that the tests of the planner start from."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

DATA = Path(__file__).resolve().parents[1] / "data" / "facts"
SHEETS = Path(__file__).resolve().parents[2] / "inventories" / "specs"
HUGE = {"model": "kimi-k2.5", "weights_source": None}
AVX512 = ["avx2", "avx512f", "avx512bw", "avx512_bf16", "avx512vbmi"]
GIB = 1 << 30
MIB = 1 << 20
LAB_SETTINGS = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/model"}


def lab_facts() -> dict[str, Any]:
    """A fresh Debian 12 under systemd-nspawn, as the probe described it."""
    facts: dict[str, Any] = json.loads((DATA / "lab-nspawn.json").read_text())
    return facts


def quoted(name: str) -> dict[str, Any]:
    """A machine of a shipped spec sheet."""
    return spec.read_sheet(SHEETS / f"{name}.yml", load_catalogue())


def metal_facts(*, nodes: int = 2, gib: int = 64, cores: int = 16) -> dict[str, Any]:
    """A machine of our own: `nodes` NUMA nodes that share `gib` GiB and `cores` cores."""
    facts = copy.deepcopy(lab_facts())
    facts["host"] |= {"container": None, "virtualization": None, "kernel": "6.1.0-25-amd64"}
    # The kernel and the firmware keep some of what was bought.
    facts["memory"] |= {"total_bytes": gib * GIB - 200 * MIB, "available_bytes": gib * GIB}
    facts["memory"]["shm_size_bytes"] = gib * GIB // 2
    facts["cpu"] |= {"cores": cores, "threads": cores, "sockets": nodes}
    facts["cpu"] |= {"online": f"0-{cores - 1}", "primary": f"0-{cores - 1}"}
    share = cores // nodes
    facts["numa"]["nodes"] = [
        {
            "id": n,
            "cpus": f"{n * share}-{(n + 1) * share - 1}",
            "memory_total_bytes": gib * GIB // nodes - 100 * MIB,
            "memory_free_bytes": gib * GIB // nodes,
            "distances": [10 if n == m else 21 for m in range(nodes)],
        }
        for n in range(nodes)
    ]
    for row in facts["tunables"]["sysctl"].values():
        row["writable"] = True
    facts["tunables"]["thp"]["writable"] = True
    facts["tunables"]["nofile_max"] = 1073741816
    for row in facts["filesystems"]:
        row |= {"total_bytes": 8 << 40, "free_bytes": 7 << 40}
    return facts


def gpu_facts(count: int = 8, mib: int = 143771, driver: str = "580.159.04") -> dict[str, Any]:
    """Eight H200 in a machine with 2 TiB."""
    facts = metal_facts(nodes=2, gib=2048, cores=96)
    facts["gpus"] = [
        {
            "index": n,
            "vendor": "nvidia",
            "model": "NVIDIA H200",
            "memory_total_bytes": mib << 20,
            "uuid": None,
            "pci": None,
            "compute_capability": "9.0",
        }
        for n in range(count)
    ]
    facts["nvidia"] = {
        "pci_devices": count,
        "driver_loaded": driver,
        "driver_installed": driver,
        "open_module": True,
    }
    return facts


def plan(facts: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """The plan for these facts; keyword arguments are settings without their prefix."""
    given = LAB_SETTINGS | {f"kimi_{name}": value for name, value in settings.items()}
    return make_plan(facts or lab_facts(), parse_settings(given, host="h1"), load_catalogue())


def found(document: dict[str, Any], identity: str) -> list[dict[str, Any]]:
    """The findings with this id."""
    return [row for row in document["findings"] if row["id"] == identity]


def blocked_by(document: dict[str, Any]) -> set[str]:
    """Ids of the blockers."""
    return {row["id"] for row in document["findings"] if row["severity"] == "blocker"}


def hybrid_facts(count: int = 2, mib: int = 95830, **host: Any) -> dict[str, Any]:
    """A machine with two cards that do not hold all weights, and memory that does."""
    facts = gpu_facts(count=count, mib=mib)
    base = metal_facts(**({"nodes": 2, "gib": 1536, "cores": 96} | host))
    facts = base | {"gpus": facts["gpus"], "nvidia": facts["nvidia"]}
    facts["cpu"]["isa"] = list(AVX512)
    for card in facts["gpus"]:
        card["model"] = "NVIDIA H100 NVL"
    return facts


def snc(nodes: int) -> dict[str, Any]:
    """Two sockets cut into this many nodes together."""
    facts = hybrid_facts(nodes=nodes, cores=96)
    facts["cpu"]["sockets"] = 2
    return facts


def argument(document: dict[str, Any], flag: str) -> str:
    """The value behind a flag on the first instance's command line."""
    line: list[str] = document["instances"][0]["argv"]
    return line[line.index(flag) + 1]
