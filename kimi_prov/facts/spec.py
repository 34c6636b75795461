"""Turn a spec sheet into a facts document, with the source of each value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kimi_prov import documents, schemas
from kimi_prov.contract import clean_text
from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.gpu_rows import make_gpu_row
from kimi_prov.documents import Document, SourceText
from kimi_prov.facts import spec_faults, spec_notations
from kimi_prov.facts.schema_check import MisfitError, find_misfits, refuse_misfits
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kimi_prov.catalog.hardware import Cpu, Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts, NvidiaFacts, NvlinkFacts
    from kimi_prov.contract.documents.facts.machine import (
        CpuFacts,
        DimmFacts,
        DiskFacts,
        MemoryFacts,
        NodeFacts,
    )
    from kimi_prov.contract.documents.facts.quote import GroupFacts, PriceFacts

SCHEMA = "kimi-prov/spec/v1"
_FACTS: Final = "kimi-prov/facts/v1"
_EXAMPLES = (
    f"see {resources.find_root() / 'inventories' / 'specs'} for sheets that are whole, or let  "
    "kimi-prov init --spec FILE  write one"
)
_ROWS = "correct the rows of your --catalog, or leave it out"
NOT_USED = "of the sheet, not used"
_MAX_BYTES = 1 << 20
_GIB = 1 << 30
_GB = 10**9
_BYTES_PER_TRANSFER = 8 * 10**6  # bytes a second of a channel for each MT/s
Sheet = dict[str, Any]
Origins = dict[str, str]
# The key of a card's lanes among the origins; it is there where the sheet does not name them.
PCIE_LANES = "pcie.width"


def read_sheet(path: Path, catalogue: Catalogue) -> Facts:
    """Return the facts of a spec sheet; null is unknown.

    Raises UserError with file, line and key for an invalid sheet, or a part that the catalogue does
    not have.
    """
    return parse_sheet(
        documents.read_document(path, what="a spec sheet", limit=_MAX_BYTES, fix=_EXAMPLES),
        catalogue,
    )


def parse_sheet(document: Document, catalogue: Catalogue) -> Facts:
    """Return the facts of a sheet whose text was read; raises UserError with all faults."""
    written = SourceText(document.text)
    value = document.yaml(_EXAMPLES)
    sheet, faults, unused = _check_sheet(
        value, catalogue, _choose_name(document.name), written.spelling
    )
    faults += [MisfitError(path, "there twice; keep one of them") for path in written.repeated()]
    if faults:
        raise refuse_misfits(document.name, faults, written, fix=_EXAMPLES)
    facts = _make_facts(sheet, catalogue, document.name)
    if unused:
        facts["origins"][", ".join(unused)] = NOT_USED
    return facts


def make_facts(value: Any, catalogue: Catalogue, detail: str) -> Facts:  # noqa: ANN401
    """Return the facts of a sheet that was made from rows of the catalogue.

    `detail` names the rows. Raises UserError where they make a machine that no sheet may describe.
    """
    sheet, faults, _ = _check_sheet(value, catalogue, detail, lambda _path: None)
    if faults:
        raise refuse_misfits(detail, faults, SourceText(""), fix=_ROWS)
    return _make_facts(sheet, catalogue, detail)


def _choose_name(name: str) -> str:
    """Return the default name of a sheet, from its file's name."""
    return clean_text.clean_line(name.rsplit("/", 1)[-1].rsplit(".", 1)[0])[:200] or "unnamed"


def _check_sheet(
    value: Any,  # noqa: ANN401
    catalogue: Catalogue,
    name: str,
    spelling: Callable[[documents.Key], str | None],
) -> tuple[Any, list[MisfitError], list[str]]:
    """Return a sheet in its schema's form, all faults by its original keys, and keys not used.

    Without faults the sheet is complete.
    """
    schema = schemas.load("spec")
    rewritten = spec_notations.rewrite_sheet(value, schema, name=name, spelling=spelling)
    unfit = list(find_misfits(rewritten.sheet, schema))
    sheet = _to_int_if_whole(rewritten.sheet)
    if isinstance(sheet, dict):
        torn = {fault.path[0] for fault in unfit if fault.path}
        unfit += spec_faults.find_contradictions(sheet, catalogue, torn)
    for fault in unfit:
        fault.path = rewritten.place(fault.path)
    return sheet, [*rewritten.faults, *unfit], rewritten.unused


def _make_facts(sheet: Sheet, catalogue: Catalogue, detail: str) -> Facts:
    origins: Origins = {}
    cpu = _read_processor(sheet["cpu"], catalogue, origins)
    software = sheet.get("software") or {}
    system = _make_system(software, catalogue, origins)
    system["host"]["arch"] = "aarch64" if cpu.row.vendor == "ARM" else "x86_64"
    origins["host.arch"] = f"catalogue: {cpu.row.name}"
    groups = list(_list_gpu_groups(sheet.get("gpus"), catalogue))
    return {
        "schema": _FACTS,
        "origin": {"kind": "spec", "name": sheet["name"], "detail": detail},
        "origins": origins,
        "note": sheet.get("note"),
        "host": system["host"],
        "python": system["python"],
        "cpu": cpu.facts(),
        "numa": {"nodes": _make_nodes(cpu, _count_memory_bytes(sheet["memory"]))},
        "memory": _make_memory(sheet["memory"], cpu, origins),
        "filesystems": [],
        "disks": [row for disk in sheet.get("disks") or [] for row in _make_disks(disk)],
        "nics": [
            {
                "name": None,
                "kind": None,
                "up": None,
                "speed_bits_per_s": round(nic["speed_gbit_s"] * _GB),
            }
            for nic in sheet.get("nics") or []
            for _ in range(nic.get("count", 1))
        ],
        "group": _make_group(sheet),
        "gpus": _make_gpus(groups, origins),
        "nvidia": _make_nvidia(groups, software, origins),
        "tunables": {"sysctl": {}, "thp": None, "governor": None, "nofile_max": None},
        "network": {"addresses": [], "default_ipv6": None, "listening": []},
        "firewall": {"nft": None, "ufw": None, "firewalld": None},
        "packages": {"installed": None, "held": None, "unattended_upgrades": None},
        "kimi": {},
        "amd": None,
        "cgroup": {"memory_bytes": None, "cpus": None},
        "ld_conf": None,
        "gib": None,
        "measured": None,
        "price": _make_price(sheet.get("price")),
    }


def _to_int_if_whole(value: Any) -> Any:  # noqa: ANN401
    """Write 8.0 as 8: YAML and JSON do not tell them apart where a whole number is wanted."""
    if isinstance(value, dict):
        return {key: _to_int_if_whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_to_int_if_whole(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class _Processors:
    """All sockets: the catalogue's row, with the sheet's values over it."""

    row: Cpu
    sockets: int
    nodes: int
    cores: int
    threads_per_core: int
    isa: tuple[str, ...]
    channels: int | None
    mt_s: int | None
    fastest_mt_s: int | None
    bandwidth_gb_s: float
    bandwidth_given: bool
    tdp_w: float | None

    @property
    def total_cores(self) -> int:
        return self.cores * self.sockets

    def threads(self, first: int, past: int) -> list[int]:
        """Return the numbers of these cores' threads: Linux counts first ones, then second ones."""
        cores = range(first, past)
        return [core + n * self.total_cores for n in range(self.threads_per_core) for core in cores]

    def facts(self) -> CpuFacts:
        threads = self.total_cores * self.threads_per_core
        per_socket = self.nodes // self.sockets if self.nodes % self.sockets == 0 else None
        return {
            "model": self.row.name,
            "catalogue_name": self.row.name,
            "vendor": self.row.vendor,
            "family": None,
            "model_number": None,
            "stepping": None,
            "sockets": self.sockets,
            "cores": self.total_cores,
            "threads": threads,
            "isa": list(self.isa),
            "amx_permission": None,
            "online": f"0-{threads - 1}" if threads > 1 else "0",
            "primary": format_list(range(self.total_cores)),
            "smt": self.threads_per_core > 1,
            "microarchitecture": self.row.microarchitecture,
            "nodes_per_socket": per_socket,
            "snc": per_socket if self.row.vendor == "GenuineIntel" else None,
            "nps": per_socket if self.row.vendor == "AuthenticAMD" else None,
            "governor": None,
            "caches": None,
            "l3_bytes": None,
            "frequency_hz": None,
            "tdp_w": self.tdp_w,
        }


def _read_processor(sheet: Sheet, catalogue: Catalogue, origins: Origins) -> _Processors:
    row = catalogue.match_cpu(sheet["model"]) or catalogue.cpu(sheet["model"])
    sockets = sheet.get("sockets", 1)
    for key in ("cores", "threads_per_core", "isa", "bandwidth_gb_s", "tdp_w"):
        origins[f"cpu.{key}"] = "sheet" if key in sheet else f"catalogue: {row.name}"
    per_core = sheet.get("threads_per_core", row.threads_per_core)
    cores = sheet.get("cores", row.cores)
    nodes = sheet.get("numa_nodes", row.nodes_per_socket * sockets)
    origins["numa.nodes"] = "sheet" if "numa_nodes" in sheet else f"catalogue: {row.name}"
    speed = sheet.get("memory_mt_s")
    return _Processors(
        row=row,
        sockets=sockets,
        nodes=nodes,
        cores=cores,
        threads_per_core=per_core,
        isa=tuple(sheet.get("isa", row.isa)),
        channels=sheet.get("memory_channels", row.memory_channels),
        mt_s=speed or row.memory_mt_s,
        fastest_mt_s=speed or row.memory_mt_s_max or row.memory_mt_s,
        bandwidth_gb_s=sheet.get("bandwidth_gb_s", row.bandwidth_gb_s),
        bandwidth_given="bandwidth_gb_s" in sheet,
        tdp_w=sheet.get("tdp_w", row.tdp_w),
    )


def _make_nodes(cpu: _Processors, memory_bytes: int) -> list[NodeFacts]:
    """Return nodes with equal parts of cores and memory, in order."""
    bounds = [n * cpu.total_cores // cpu.nodes for n in range(cpu.nodes + 1)]
    return [
        {
            "id": index,
            "cpus": format_list(cpu.threads(first, past)),
            "memory_total_bytes": memory_bytes // cpu.nodes,
            "memory_free_bytes": None,
            "distances": [],
        }
        for index, (first, past) in enumerate(pairwise(bounds))
    ]


def _count_memory_bytes(sheet: Sheet) -> int:
    """Return the bytes of memory: modules are sold in GiB."""
    modules, size = sheet.get("dimms"), sheet.get("dimm_gb")
    gib: int = modules * size if modules and size else sheet["total_gb"]
    return gib * _GIB


def _make_memory(sheet: Sheet, cpu: _Processors, origins: Origins) -> MemoryFacts:
    dimms = sheet["dimms"] if "dimms" in sheet and "dimm_gb" in sheet else None
    speed = int(sheet.get("speed_mt_s") or cpu.mt_s or 0) or None
    configured = sheet.get("configured_mt_s") or _choose_memory_speed(speed, cpu, dimms)
    origins["memory.speed_mt_s"] = (
        "sheet" if "speed_mt_s" in sheet else f"catalogue: {cpu.row.name}"
    )
    total = cpu.channels * cpu.sockets if cpu.channels else None
    populated = _count_populated_channels(dimms, cpu) if total else None
    measured = sheet.get("measured_gb_s")
    module: DimmFacts = {
        "size_bytes": sheet["dimm_gb"] * _GIB if dimms else None,
        "speed_mt_s": speed,
        "configured_mt_s": configured,
        "locator": None,
    }
    origins["memory.bandwidth_bytes_per_s.theoretical"] = (
        "populated channels x MT/s x 8 bytes" if populated else f"catalogue: {cpu.row.name}"
    )
    return {
        "total_bytes": _count_memory_bytes(sheet),
        "available_bytes": None,
        "swap_total_bytes": None,
        "hugepages_total": None,
        "hugepage_bytes": None,
        "shm_size_bytes": None,
        "cgroup_limit_bytes": None,
        "dimms": [{**module} for _ in range(dimms)] if dimms else None,
        "channels_populated": populated,
        "channels_total": total,
        "bandwidth_bytes_per_s": {
            "measured": round(measured * _GB) if measured else None,
            "theoretical": _compute_bandwidth(cpu, populated, configured),
        },
    }


def _choose_memory_speed(speed: int | None, cpu: _Processors, dimms: int | None) -> int | None:
    """Return the memory's speed, limited by what the processor takes with so many modules."""
    limits = [cpu.fastest_mt_s]
    if dimms and cpu.channels and dimms > cpu.channels * cpu.sockets:
        limits.append(cpu.row.memory_mt_s_two)
    return speed and min([speed, *(limit for limit in limits if limit)])


def _count_populated_channels(dimms: int | None, cpu: _Processors) -> int | None:
    """Return the channels with a module: modules fill each channel first, sockets in turn."""
    if dimms is None or cpu.channels is None:
        return None
    shares = [dimms // cpu.sockets + (n < dimms % cpu.sockets) for n in range(cpu.sockets)]
    return sum(min(cpu.channels, share) for share in shares)


def _compute_bandwidth(cpu: _Processors, populated: int | None, mt_s: int | None) -> int:
    """Return bytes a second of the channels with modules, or of all channels if unknown."""
    full = cpu.bandwidth_gb_s * cpu.sockets * _GB
    if populated is None or cpu.channels is None:
        return round(full)
    if cpu.bandwidth_given or mt_s is None:
        return round(full * populated / (cpu.channels * cpu.sockets))
    return populated * mt_s * _BYTES_PER_TRANSFER


def _make_disks(sheet: Sheet) -> list[DiskFacts]:
    speed = sheet.get("read_gb_s")
    row: DiskFacts = {
        "name": None,
        "kind": sheet.get("kind"),
        "model": None,
        "size_bytes": round(sheet["size_gb"] * _GB),
        "read_bytes_per_s": round(speed * _GB) if speed else None,
    }
    return [{**row} for _ in range(sheet.get("count", 1))]


def _make_group(sheet: Sheet) -> GroupFacts | None:
    """Return the number of hosts that serve together, and their link; None for a single host."""
    hosts, link = sheet.get("hosts", 1), sheet.get("link")
    if hosts == 1:
        return None
    speed = (link or {}).get("speed_gbit_s")
    return {
        "hosts": hosts,
        "link": link
        and {
            "kind": link["kind"],
            "speed_bits_per_s": round(speed * _GB) if speed else None,
            "count": link.get("count", 1),
        },
    }


def _list_gpu_groups(sheet: Any, catalogue: Catalogue) -> Iterable[tuple[Gpu, Sheet]]:  # noqa: ANN401
    """Return each kind of GPU with its row of the catalogue."""
    for _, group in spec_faults.list_cards(sheet):
        row = spec_faults.find_card(group, catalogue)
        if row is not None:
            yield row, group


def _make_gpus(groups: list[tuple[Gpu, Sheet]], origins: Origins) -> list[GpuFacts]:
    rows: list[GpuFacts] = []
    for row, group in groups:
        memory_gb = group.get("memory_gb")
        size = round(memory_gb * _GIB) if memory_gb else row.memory_bytes
        for _ in range(group.get("count", 1)):
            rows.append(
                {
                    **make_gpu_row(len(rows), row.vendor, row.name, size, group["model"]),
                    "uuid": None,
                    "pci": None,
                    "compute_capability": group.get("compute_capability", row.compute_capability),
                    "pcie": {
                        "gen": group.get("pcie_gen", row.pcie_gen),
                        "gen_max": group.get("pcie_gen", row.pcie_gen),
                        "gen_card": row.pcie_gen,
                        "width": group.get("pcie_width", 16),
                        "width_max": 16,
                    },
                    "power_limit_w": group.get("power_limit_w", row.tdp_w),
                    "mig": group.get("mig"),
                    "ecc": group.get("ecc"),
                    "persistence": None,
                    "numa_node": None,
                    "fabric_state": None,
                    "fabric_status": None,
                    "passthrough": None,
                }
            )
            origin = "sheet" if memory_gb else f"catalogue: {row.name}"
            origins[f"gpus[{len(rows) - 1}].memory_bytes"] = origin
            if "pcie_width" not in group:
                origins[f"gpus[{len(rows) - 1}].{PCIE_LANES}"] = "assumed: a slot with all lanes"
    return rows


def _make_nvidia(
    groups: list[tuple[Gpu, Sheet]], software: Mapping[str, Any], origins: Origins
) -> NvidiaFacts | None:
    gpus = [
        (row, group.get("nvlink"))
        for row, group in groups
        if row.vendor == "nvidia"
        for _ in range(group.get("count", 1))
    ]
    if not gpus:
        return None
    driver = software.get("nvidia_driver")
    matrix = _make_links(gpus)
    links: NvlinkFacts | None = None
    if matrix is not None:
        links = {
            "matrix": [[*line] for line in matrix],
            "paths": None,
            "links_per_gpu": [max(line, default=0) for line in matrix],
            "link_bytes_per_s": None,
        }
    has_nvlink = any(nvlink for _, nvlink in gpus)
    origins["nvidia.nvlink"] = "sheet" if has_nvlink else f"catalogue: {gpus[0][0].name}"
    return {
        "pci_devices": len(gpus),
        "driver_installed": driver,
        "driver_loaded": driver,
        "cuda": None,
        "open_module": software.get("open_module"),
        "fabric_manager": None,
        "nscq": None,
        "nvlink": links,
        "nvswitch": len(gpus) > 1 and all(row.nvswitch for row, _ in gpus),
        "held": None,
        "libs": None,
    }


def _make_links(gpus: list[tuple[Gpu, str | None]]) -> list[list[int]] | None:
    """Return links between each two GPUs; None if neither sheet nor catalogue has them."""
    row, nvlink = gpus[0]
    if any(other != gpus[0] for other in gpus):
        return None
    if nvlink is None:
        nvlink = "none" if not row.nvlink_gb_s else "full" if row.nvswitch else None
    if nvlink is None and len(gpus) > 1:
        return None

    def links(a: int, b: int) -> int:
        joined = nvlink == "full" or (nvlink == "pairs" and a // 2 == b // 2)
        return row.nvlink_links if joined and a != b else 0

    return [[links(a, b) for b in range(len(gpus))] for a in range(len(gpus))]


def _make_system(
    software: Mapping[str, Any], catalogue: Catalogue, origins: Origins
) -> dict[str, Any]:
    name, _, version = str(software.get("os") or "").partition("-")
    row = catalogue.system(name, version) if name else None
    kernel, python = software.get("kernel"), software.get("python")
    if row is not None:
        defaults = {"host.glibc": None, "host.kernel": kernel, "python.version": python}
        for key, value in defaults.items():
            origins[key] = "sheet" if value else f"catalogue: {name} {version}"
        kernel, python = kernel or row.kernel, python or row.python
    return {
        "host": {
            "hostname": None,
            "os": {
                "id": name or None,
                "version_id": version or None,
                "codename": None,
                "pretty": f"{name} {version}" if name else None,
            },
            "kernel": kernel,
            "arch": None,
            "glibc": row.glibc if row else None,
            "virtualization": software.get("virtualization"),
            "container": None,
            "systemd_version": None,
            "systemd_running": None,
            "machine_id_hash": None,
            "root": None,
        },
        "python": {
            "path": "/usr/bin/python3" if python else None,
            "version": python,
            "has_venv": None,
            "others": [],
        },
    }


def _make_price(sheet: Sheet | None) -> PriceFacts | None:
    """Return prices in dollars, and the amounts and rate that they were quoted with."""
    if not sheet:
        return None
    rate = sheet.get("usd_per_unit", 1)
    purchase, hourly = sheet.get("purchase"), sheet.get("hourly")
    price: PriceFacts = {
        "purchase_usd": sheet.get("purchase_usd")
        if purchase is None
        else round(purchase * rate, 4),
        "hourly_usd": sheet.get("hourly_usd") if hourly is None else round(hourly * rate, 4),
    }
    if purchase is not None or hourly is not None:
        price["quoted"] = {
            "purchase": purchase,
            "hourly": hourly,
            "currency": sheet["currency"],
            "usd_per_unit": rate,
        }
    return price
