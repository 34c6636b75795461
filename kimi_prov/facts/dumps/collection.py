"""Put what a folder or a text has into the files of a recording, and tell what was read.

Of a part that several outputs tell, the one that tells more counts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.errors import UserError
from kimi_prov.facts.dumps import (
    amd,
    devices,
    gpus,
    inventories,
    memory,
    overviews,
    processors,
    redfish,
    reports,
    slurm,
)
from kimi_prov.facts.dumps.sections import Section, split_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.contract.documents.facts.machine import DiskFacts
    from kimi_prov.contract.documents.facts.quote import NicFacts
    from kimi_prov.contract.documents.facts.recorded import DamagedFile, ReadFile
    from kimi_prov.facts.dumps.gpus import Row

MAX_BYTES = 16 << 20
_MAX_TOTAL_BYTES = 64 << 20
_MAX_FILES, _MAX_DEPTH = 20_000, 8
# A folder with more files is a collection of a whole system (sosreport): of it, those that name one
# of these are read.
_MANY_FILES = 200
_HINTS = re.compile(
    r"lscpu|cpuinfo|meminfo|numactl|nvidia|dmidecode|lspci|lsblk|os-release|uname|redfish|rocm"
    r"|(?:^|/)free|(?:^|/)ip_|(?:^|/)version$",
    re.IGNORECASE,
)
# What people call an output.
WORDS = {
    "cpuinfo": "/proc/cpuinfo",
    "meminfo": "/proc/meminfo",
    "lscpu_json": "lscpu -J",
    "lscpu": "lscpu",
    "lscpu_e": "lscpu -e",
    "numactl": "numactl --hardware",
    "free": "free",
    "dmidecode": "dmidecode",
    "xml": "nvidia-smi -q -x",
    "query": "nvidia-smi -q",
    "csv": "nvidia-smi --query-gpu",
    "rows": "nvidia-smi --query-gpu without a head",
    "table": "nvidia-smi",
    "list": "nvidia-smi -L",
    "report": "a report of PyTorch or SGLang",
    "monitor": "JSON of a GPU monitor",
    "summary": "a summary of processor and memory",
    "habana": "hl-smi",
    "topology": "nvidia-smi topo -m",
    "no_gpu": "nvidia-smi without a GPU",
    "lspci": "lspci",
    "lsblk": "lsblk",
    "lsblk_json": "lsblk -J",
    "ip": "ip addr",
    "ip_json": "ip -j addr",
    "ip_brief": "ip -br addr",
    "rocm": "rocm-smi",
    "rocm_json": "rocm-smi --json",
    "nvrm": "/proc/driver/nvidia/version",
    "os_release": "/etc/os-release",
    "uname": "uname -a",
    "machine_arch": "uname -m",
    "lstopo": "lstopo",
    "inxi": "inxi",
    "modules": "lines of dmidecode",
    "amd_static": "amd-smi static",
    "amd_table": "amd-smi",
    "redfish": "Redfish",
    "scontrol": "scontrol show node",
    "sinfo": "sinfo",
    "slurm_json": "JSON of SLURM",
    "ansible": "Ansible's facts",
    "kube_node": "kubectl describe node",
    "kube_json": "kubectl get node -o json",
    "rocminfo": "rocminfo",
    "ggml": "a log of llama.cpp",
    "ilo": "a list of iLO",
    "lshw": "lshw",
    "os_line": "the OS of a report",
}
# The file of a recording that an output is as it stands.
_FILES = {
    "cpuinfo": "cpuinfo.txt",
    "meminfo": "meminfo.txt",
    "lscpu_e": "lscpu_e.txt",
    "numactl": "numactl-hardware.txt",
    "xml": "nvidia-smi-q.xml",
    "nvrm": "nvidia-version.txt",
    "os_release": "os-release.txt",
}
KINDS_OF_FILES = {file: kind for kind, file in _FILES.items()} | {
    "lscpu.json": "lscpu_json",
    "gpus.csv": "csv",
    "dmidecode.txt": "dmidecode",
    "nvidia-smi-topo-m.txt": "topology",
}


# Answers that come in parts.
_JOINED = frozenset({"report", "rocm", "inxi", "modules", "scontrol", "rocminfo", "lshw"})


@dataclass
class Collected:
    """What was read: the files of a recording, and what has no such file."""

    texts: dict[str, str] = field(default_factory=dict)
    gpus: list[Row] = field(default_factory=list)
    disks: list[DiskFacts] = field(default_factory=list)
    nics: list[NicFacts] = field(default_factory=list)
    sockets: int | None = None
    arch: str | None = None
    kernel: str | None = None
    driver: str | None = None
    kinds: set[str] = field(default_factory=set)
    read: list[ReadFile] = field(default_factory=list)
    damaged: list[DamagedFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, sections: list[Section]) -> None:
        """Add outputs, those that tell more first."""
        order = list(_READERS)
        known = [row for row in _join_reports(sections) if row.kind in _READERS]
        for row in sorted(known, key=lambda row: order.index(row.kind)):
            if _READERS[row.kind](self, row):
                self.kinds.add(row.kind)
                self.read.append({"file": row.file, "what": WORDS[row.kind]})
            else:
                self.damage(row.file, f"{WORDS[row.kind]}: nothing could be read of it")
        for row in sections:
            if row.kind == "damaged":
                self.damage(row.file, f"JSON of {row.document} that is cut off or changed")

    def damage(self, file: str, problem: str) -> None:
        """Note a file that is there and cannot be read."""
        self.damaged.append({"file": file, "problem": problem})

    def keep(self, texts: dict[str, str]) -> bool:
        """Keep files of a recording, each unless there is one that tells more."""
        for name, text in texts.items():
            if text:
                self.texts.setdefault(name, text)
        return bool(texts)

    def keep_gpus(self, rows: list[Row]) -> bool:
        """Keep rows of GPUs; another form of the same GPUs fills in what the first lacks."""
        if not self.gpus:
            self.gpus = rows
        elif len(rows) == len(self.gpus):
            self.gpus = [{**new, **old} for old, new in zip(self.gpus, rows, strict=True)]
        return bool(rows)


def _join_reports(sections: list[Section]) -> list[Section]:
    """Put the parts of one answer into one.

    A script prints between the GPUs of its report, rocm-smi and greps print part by part, and
    Redfish has a document for each part.
    """
    joined: dict[tuple[str, str], list[Section]] = {}
    for row in sections:
        file = row.file if row.kind in _JOINED else ""
        joined.setdefault(
            (row.kind if file or row.kind == "redfish" else str(id(row)), file), []
        ).append(row)
    return [_join_parts(parts) for parts in joined.values()]


def _join_parts(parts: list[Section]) -> Section:
    if len(parts) == 1:
        return parts[0]
    text = "\n".join(row.text for row in parts)
    return Section(parts[0].kind, text, parts[0].file, [row.document for row in parts])


def _keep_file(collected: Collected, row: Section) -> bool:
    # `grep "model name" | uniq -c` puts a count before the line.
    text = re.sub(r"^[ \t]*\d{1,4}[ \t]+(?=model name)", "", row.text, flags=re.MULTILINE)
    return collected.keep({_FILES[row.kind]: text if row.kind == "cpuinfo" else row.text})


def _read_list(collected: Collected, row: Section) -> bool:
    if re.search(r"^\s+Link \d+: ", row.text, re.MULTILINE):
        collected.keep({"nvidia-smi-nvlink-s.txt": row.text})
    return collected.keep_gpus(gpus.parse_list(row.text))


def _read_topology(collected: Collected, row: Section) -> bool:
    if not collected.gpus:
        collected.gpus = gpus.count_topology(row.text)
        collected.skipped += ["nvidia-smi topo -m tells how many GPUs, and not which"]
    return collected.keep(gpus.normalise_topology(row.text))


def _read_report(collected: Collected, row: Section) -> bool:
    report = reports.parse_report(row.text)
    collected.skipped += report.notes
    collected.driver = collected.driver or reports.find_driver(row.text)
    return collected.keep_gpus(report.rows) or collected.driver is not None


def _read_summary(collected: Collected, row: Section) -> bool:
    collected.sockets = collected.sockets or reports.find_sockets(row.text)
    return collected.keep(reports.parse_summary(row.text))


def _read_habana(collected: Collected, row: Section) -> bool:
    notes = reports.parse_habana(row.text)
    collected.skipped += notes
    return bool(notes)


def _read_lscpu(collected: Collected, row: Section) -> bool:
    fields = (
        dict(processors.flatten_rows(row.document["lscpu"]))
        if row.kind == "lscpu_json"
        else processors.parse_lscpu(row.text)
    )
    collected.arch = collected.arch or fields.get("Architecture")
    return bool(fields) and collected.keep(processors.normalise_lscpu(fields))


def _read_dmidecode(collected: Collected, row: Section) -> bool:
    modules = memory.normalise_dmidecode(row.text)
    known = collected.keep(modules)
    size = memory.sum_modules(modules.get("dmidecode.txt", ""))
    if size:
        collected.keep({"meminfo.txt": f"MemTotal: {size // 1024} kB"})
    return collected.keep(processors.normalise_dmidecode(row.text)) or known


def _read_redfish(collected: Collected, row: Section) -> bool:
    texts, cards = redfish.normalise(row.document)
    held = collected.keep_gpus(cards)
    return collected.keep(texts) or held


def _read_modules(collected: Collected, row: Section) -> bool:
    texts, sockets = overviews.normalise_modules(row.text)
    collected.sockets = collected.sockets or sockets
    return collected.keep(texts)


def _read_lstopo(collected: Collected, row: Section) -> bool:
    texts, sockets = overviews.normalise_lstopo(row.text)
    collected.sockets = collected.sockets or sockets
    return collected.keep(texts)


def _read_inxi(collected: Collected, row: Section) -> bool:
    texts, rows, driver = overviews.normalise_inxi(row.text)
    collected.driver = collected.driver or driver
    collected.sockets = collected.sockets or overviews.count_processors(row.text)
    held = bool(rows) and collected.keep_gpus(rows)
    return collected.keep(texts) or held


def _read_slurm(collected: Collected, row: Section) -> bool:
    nodes = (
        slurm.read_json(row.document)
        if row.kind == "slurm_json"
        else (slurm.parse_sinfo if row.kind == "sinfo" else slurm.parse_scontrol)(row.text)
    )
    described = slurm.describe(nodes)
    collected.arch = collected.arch or described.arch
    collected.skipped += described.notes
    held = bool(described.rows) and collected.keep_gpus(described.rows)
    return collected.keep(described.texts) or held


def _get_object(row: Section) -> dict[str, object]:
    """Return a document, or the first of a list."""
    document = row.document[0] if isinstance(row.document, list) else row.document
    return document if isinstance(document, dict) else {}


_LISTED: dict[str, Callable[[Section], inventories.Listed]] = {
    "ansible": lambda row: inventories.read_ansible(_get_object(row)),
    "kube_node": lambda row: inventories.parse_node(row.text),
    "kube_json": lambda row: inventories.read_node(_get_object(row)),
    "rocminfo": lambda row: inventories.parse_rocminfo(row.text),
    "ggml": lambda row: inventories.parse_ggml(row.text),
    "ilo": lambda row: inventories.parse_ilo(row.text),
    "lshw": lambda row: inventories.parse_lshw(row.text),
    "os_line": lambda row: inventories.parse_system(row.text.splitlines()[0]),
}


def _read_listed(collected: Collected, row: Section) -> bool:
    listed = _LISTED[row.kind](row)
    collected.arch = collected.arch or listed.arch
    collected.kernel = collected.kernel or listed.kernel
    collected.sockets = collected.sockets or listed.sockets
    collected.skipped += listed.notes
    held = bool(listed.rows) and collected.keep_gpus(listed.rows)
    return collected.keep(listed.texts) or held or listed.arch is not None


def _read_bus(collected: Collected, row: Section) -> bool:
    text, cards = gpus.parse_bus(row.text)
    collected.keep({"pci.txt": text})
    if not collected.gpus:
        collected.gpus = cards
    return True


def _read_uname(collected: Collected, row: Section) -> bool:
    words = row.text.splitlines()[0].split()
    collected.kernel = collected.kernel or (words[2] if len(words) > 2 else None)
    known = (word for word in words if word in ("x86_64", "aarch64", "ppc64le"))
    collected.arch = collected.arch or next(known, None)
    return True


def _read_cards(collected: Collected, row: Section) -> bool:
    rows = row.document if row.kind == "ip_json" else None
    collected.nics = collected.nics or (
        devices.read_cards(rows) if rows is not None else devices.parse_cards(row.text)
    )
    return True


def _read_disks(collected: Collected, row: Section) -> bool:
    rows = (
        devices.read_disks(row.document)
        if row.kind == "lsblk_json"
        else devices.parse_disks(row.text)
    )
    collected.disks = collected.disks or rows
    return bool(rows)


# The outputs, those that tell more first.
_READERS: dict[str, Callable[[Collected, Section], bool]] = {
    **dict.fromkeys(_FILES, _keep_file),
    "lscpu_json": _read_lscpu,
    "lscpu": _read_lscpu,
    "free": lambda collected, row: collected.keep(memory.normalise_free(row.text)),
    "csv": lambda collected, row: collected.keep_gpus(gpus.parse_columns(row.text)),
    "rows": lambda collected, row: collected.keep_gpus(gpus.parse_columns(row.text)),
    "query": lambda collected, row: collected.keep_gpus(gpus.parse_query(row.text)),
    "table": lambda collected, row: collected.keep_gpus(gpus.parse_table(row.text)),
    "list": _read_list,
    "monitor": lambda collected, row: collected.keep_gpus(reports.parse_monitor(row.document)),
    "report": _read_report,
    "habana": _read_habana,
    "topology": _read_topology,
    "amd_static": lambda collected, row: collected.keep_gpus(amd.parse_static(row.text)),
    "amd_table": lambda collected, row: collected.keep_gpus(amd.parse_overview(row.text)),
    "rocm": lambda collected, row: collected.keep_gpus(amd.parse_rocm(row.text)),
    "rocm_json": lambda collected, row: collected.keep_gpus(amd.parse_rocm_json(row.document)),
    "no_gpu": lambda collected, row: True,  # noqa: ARG005
    "dmidecode": _read_dmidecode,
    "redfish": _read_redfish,
    "lspci": _read_bus,
    "lsblk_json": _read_disks,
    "lsblk": _read_disks,
    "ip_json": _read_cards,
    "ip": _read_cards,
    "ip_brief": _read_cards,
    "uname": _read_uname,
    "machine_arch": _read_uname,
    "modules": _read_modules,
    "lstopo": _read_lstopo,
    "inxi": _read_inxi,
    "scontrol": _read_slurm,
    "slurm_json": _read_slurm,
    "sinfo": _read_slurm,
    **dict.fromkeys(_LISTED, _read_listed),
    "summary": _read_summary,
}


def read_folder(
    path: Path, known: tuple[str, ...]
) -> tuple[dict[str, str], list[Section], list[str]]:
    """Read a folder: its recorded files by name, the outputs in all others, and what was left out.

    Raises UserError where the folder, or a file with a recorded name, cannot be read.
    """
    names = _list_files(path, known)
    texts: dict[str, str] = {}
    sections: list[Section] = []
    skipped: list[str] = []
    total = 0
    for name in names:
        plain = name.removesuffix(".gz")
        if len(names) > _MANY_FILES and plain not in known and not _HINTS.search(name):
            continue
        try:
            content = documents.read_bytes(
                path / name, what="such a file", limit=MAX_BYTES, fix="record it again"
            )
        except UserError as error:
            if plain in known:
                raise
            skipped.append(f"{name}: {error.message.rpartition(': ')[2]}")
            continue
        total += len(content)
        if total > _MAX_TOTAL_BYTES:
            skipped.append(f"{name} and what follows it: more than {_MAX_TOTAL_BYTES >> 20} MiB")
            break
        text = content.decode("utf-8", "replace")
        collected = split_text(text, name)
        kind = KINDS_OF_FILES.get(plain)
        if plain in known and (kind is None or {row.kind for row in collected} <= {kind}):
            texts.setdefault(plain, text)
        elif collected:
            sections += collected
        elif len(names) <= _MANY_FILES:
            skipped.append(f"{name}: no output of a command that is known")
    return texts, sections, skipped


def _list_files(path: Path, known: tuple[str, ...]) -> list[str]:
    """List the files below a folder, those at its top first; no link to a folder is followed."""
    try:
        top = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", fix="name a folder that you may read"
        ) from None
    links = {name for name in top if (path / name).is_symlink()}
    folders = {name for name in top if (path / name).is_dir()}
    # A folder in the place of a recorded file is told as a fault of that file.
    files = [name for name in top if name not in folders or name.removesuffix(".gz") in known]
    for folder in sorted(folders - links - set(files)):
        files += _walk(path, folder)
        if len(files) > _MAX_FILES:
            break
    return files[:_MAX_FILES]


def _walk(path: Path, folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(path / folder):
        inside = Path(parent).relative_to(path)
        if len(inside.parts) >= _MAX_DEPTH:
            folders.clear()
        folders.sort()
        for name in sorted(names):
            if not (Path(parent) / name).is_symlink():
                yield str(inside / name)
