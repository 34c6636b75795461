"""Read recorded command outputs and files of a machine as the probe would.

A folder may have files with the names of `FILES` and `ANSWERS`, or any other files with outputs in
them, which are recognised by their content; each may be compressed (`.gz`). So may a single text. A
missing part is unknown.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.contract.numbers import parse_int
from kimi_prov.errors import UserError
from kimi_prov.facts.dumps import collection, completion, gpus
from kimi_prov.facts.dumps.collection import Collected
from kimi_prov.facts.dumps.sections import Section, is_of_machine, split_text
from kimi_prov.on_host.probe import collect, nvidia_smi
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.facts import Facts

FILES = {
    "cpuinfo.txt": "/proc/cpuinfo",
    "meminfo.txt": "/proc/meminfo",
    "nvidia-version.txt": "/proc/driver/nvidia/version",
    "thp.txt": "/sys/kernel/mm/transparent_hugepage/enabled",
    "os-release.txt": "/etc/os-release",
    "kernel.txt": "/proc/sys/kernel/osrelease",
}
ANSWERS = {
    "lscpu.json": ("lscpu", "-J"),
    "nvidia-smi-q.xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-topo-m.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink-s.txt": ("nvidia-smi", "nvlink", "-s"),
    "modinfo.txt": ("modinfo", "nvidia"),
    "dmidecode.txt": ("dmidecode", "-t", "17"),
}
_OTHERS = ("gpus.csv", "lscpu_e.txt", "numa.txt", "numactl-hardware.txt", "pci.txt")
_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_PCI = "/sys/bus/pci/devices"
# Limits above those of Linux.
_MAX_CPUS = 8192
_MAX_DEVICES = 4096
_MAX_NODES = 256
NAMES = (*FILES, *ANSWERS, *_OTHERS)
_FIX = (
    "a recorded folder holds output of lscpu, /proc/cpuinfo, /proc/meminfo, free, numactl -H, "
    "nvidia-smi, dmidecode, lspci or lsblk, a server's Redfish JSON, or some of: "
    f"{', '.join(NAMES)}"
)


class NoRecordingError(UserError):
    """A folder without any output of a machine."""


def read_recording(path: Path) -> Facts:
    """Return the facts of a recorded folder; null is unknown.

    Raises UserError naming the folder, or the file of it, that cannot be read.
    """
    texts, sections, skipped = collection.read_folder(path, NAMES)
    if not texts and not is_of_machine(sections):
        raise NoRecordingError(f"{path}: this folder holds no recording", fix=_FIX)
    collected = Collected(skipped=skipped)
    for name, text in texts.items():
        sections += _add_file(collected, name, text)
    collected.add(sections)
    return _make_facts(collected, path.resolve().name)


def read_text(text: str, name: str) -> Facts | None:
    """Return the facts of a text with outputs of commands; None where it has none."""
    sections = split_text(text, name)
    if not is_of_machine(sections):
        return None
    collected = Collected()
    collected.add(sections)
    return _make_facts(collected, name) if collected.read else None


def _add_file(collected: Collected, name: str, text: str) -> list[Section]:
    """Add a file with a recorded name; return the outputs in it that tell of several parts."""
    kind = collection.KINDS_OF_FILES.get(name)
    sections = split_text(text, name)
    if kind in ("lscpu_json", "csv", "dmidecode", "topology") and sections:
        return sections
    collected.keep({name: text})
    complete = kind != "xml" or nvidia_smi.parse_query(text) is not None
    if not text.strip() or not complete or (kind == "lscpu_json" and not sections):
        collected.damage(name, "empty" if not text.strip() else "cut off, or of another form")
    else:
        collected.kinds.add(kind or name)
        collected.read.append({"file": name, "what": collection.WORDS.get(kind or "", name)})
    return []


def _make_facts(collected: Collected, name: str) -> Facts:
    if collected.gpus:
        collected.texts["gpus.csv"] = gpus.write_columns(collected.gpus)
    facts = collect.collect(Recording(collected.texts))
    facts["origin"] = {
        "kind": "recording",
        "name": name,
        "detail": "recorded: "
        + ", ".join(dict.fromkeys(f"{row['file']} ({row['what']})" for row in collected.read)),
    }
    facts["collected_at"] = _find_time(collected.texts.get("nvidia-smi-q.xml", ""))
    facts["host"]["hostname"] = None
    # These were not recorded, and an empty answer would mean that there are none.
    facts["kimi"] = {}
    facts["firewall"] = {"nft": None, "ufw": None, "firewalld": None}
    facts["network"] = {"addresses": [], "default_ipv6": None, "listening": []}
    completion.complete(facts, collected)
    return facts


def _find_time(xml: str) -> str:
    """Return the time in nvidia-smi's answer, which is the machine's local time."""
    match = re.search(r"<timestamp>([^<]{1,40})</timestamp>", xml)
    return match.group(1) if match else "unknown"


class Recording(Machine):
    """A machine of which only some files and answers are known."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__("/nonexistent/recording")
        self._files = {
            path: texts[name].rstrip("\n") for name, path in FILES.items() if name in texts
        }
        self._answers = {words: texts[name] for name, words in ANSWERS.items() if name in texts}
        if "gpus.csv" in texts:
            self._answers[("nvidia-smi", "--query-gpu")] = _sort_columns(texts["gpus.csv"])
        if {"nvidia-smi-q.xml", "gpus.csv"} & set(texts):
            self._files["/proc/driver/nvidia/gpus"] = ""  # nvidia-smi answered: there is a driver
        places = list(_locate_cpus(texts))
        self._files.update(_make_topology(places))
        nodes = _list_nodes(texts, places)
        if not places:
            # Where nothing else tells the CPUs, those of the nodes are online.
            lists = [parse_list(text) for path, text in nodes.items() if path.endswith("/cpulist")]
            listed = format_list(sorted(cpu for cpus in lists for cpu in cpus))
            self._files.update({f"{_CPU}/online": listed} if listed else {})
        self._files.update(nodes)
        self._files.update(_parse_bus(texts.get("pci.txt", "")))
        self._folders = {
            path.rsplit("/", cut)[0] for path in self._files for cut in range(1, path.count("/"))
        }

    @property
    def live(self) -> bool:
        """False: a system call would describe the machine that reads the recording."""
        return False

    def read(self, name: str) -> str | None:
        """Return the recorded content of a file."""
        return self._files.get(name)

    def exists(self, name: str) -> bool:
        """Whether the recording has this path."""
        return name in self._files or name in self._folders

    def glob(self, pattern: str) -> list[str]:
        """Return the recorded files and folders that match; no wildcard crosses a slash."""
        parts = pattern.split("/")
        return sorted(
            path
            for path in {*self._files, *self._folders}
            if path.count("/") == len(parts) - 1
            and all(map(fnmatch.fnmatchcase, path.split("/"), parts))
        )

    def which(self, command: str) -> str | None:  # noqa: ARG002
        """Return None: the recording does not have the machine's commands."""
        return None

    def run(self, argv: Sequence[str], timeout_s: float = 10.0) -> str | None:  # noqa: ARG002
        """Return the recorded answer of the command."""
        words = tuple(argv)
        if len(words) > 1 and words[1].startswith("--query-gpu"):
            words = (words[0], "--query-gpu")
        return self._answers.get(words)


def _sort_columns(text: str) -> str:
    """Sort the recorded columns in the order of the probe's request."""
    rows = nvidia_smi.parse_table(text)
    return "\n".join(
        ", ".join(row.get(name, "").removesuffix(" MiB") for name in nvidia_smi.COLUMNS)
        for row in rows
    )


def _locate_cpus(texts: dict[str, str]) -> Iterator[dict[str, int]]:
    """Yield cpu, node, socket and core of each CPU from `lscpu -e`, else from /proc/cpuinfo."""
    rows = [line.split() for line in texts.get("lscpu_e.txt", "").splitlines()]
    head = rows[0] if rows else []
    if {"CPU", "SOCKET", "CORE"} <= set(head):
        for row in rows[1 : _MAX_CPUS + 1]:
            known = dict(zip(head, row, strict=False))
            if known.get("ONLINE", "yes") == "yes" and _parse_cpu(known.get("CPU")) is not None:
                yield {
                    name.lower(): parse_int(known.get(name)) or 0
                    for name in ("CPU", "NODE", "SOCKET", "CORE")
                }
        return
    for block in texts.get("cpuinfo.txt", "").split("\n\n")[:_MAX_CPUS]:
        known = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in block.splitlines())
        }
        cpu = _parse_cpu(known.get("processor"))
        if cpu is not None:
            core = parse_int(known.get("core id"))
            yield {
                "cpu": cpu,
                "node": -1,
                "socket": parse_int(known.get("physical id")) or 0,
                "core": cpu if core is None else core,
            }


def _make_topology(places: list[dict[str, int]]) -> dict[str, str]:
    if not places:
        return {}
    cores: dict[tuple[int, int], list[int]] = {}
    for location in places:
        cores.setdefault((location["socket"], location["core"]), []).append(location["cpu"])
    threads = {core: format_list(cpus) for core, cpus in cores.items()}
    files = {f"{_CPU}/online": format_list([location["cpu"] for location in places])}
    for location in places:
        base = f"{_CPU}/cpu{location['cpu']}/topology"
        files[f"{base}/physical_package_id"] = str(location["socket"])
        files[f"{base}/thread_siblings_list"] = threads[location["socket"], location["core"]]
    return files


def _list_nodes(texts: dict[str, str], places: list[dict[str, int]]) -> dict[str, str]:
    """Return the nodes from the kernel's own files, else numactl, else the CPUs' nodes."""
    files = _parse_kernel_nodes(texts.get("numa.txt", ""))
    if not files:
        files = _parse_numactl_nodes(texts.get("numactl-hardware.txt", ""))
    if not files:
        rows = re.findall(r"^(\d{1,3}) ([\d,-]*)$", texts.get("nodes.txt", ""), re.MULTILINE)
        files = {f"{_NODE}/node{n}/cpulist": format_list(parse_list(cpus)) for n, cpus in rows}
    if files:
        return files
    members: dict[int, list[int]] = {}
    for location in places:
        if location["node"] >= 0:
            members.setdefault(location["node"], []).append(location["cpu"])
    return {f"{_NODE}/node{n}/cpulist": format_list(cpus) for n, cpus in members.items()}


def _parse_kernel_nodes(text: str) -> dict[str, str]:
    """Read blocks of: the node's folder, its CPUs, its distances, its meminfo."""
    files: dict[str, str] = {}
    sizes: dict[str, list[str]] = {}
    folder = ""
    for line in text.splitlines():
        node = re.fullmatch(rf"{_NODE}/node([0-9]{{1,3}})", line.strip())
        if node:
            folder = node.group() if int(node.group(1)) < _MAX_NODES else ""
        elif folder and line.startswith("Node "):
            sizes.setdefault(f"{folder}/meminfo", []).append(line)
        elif folder and f"{folder}/cpulist" not in files:
            files[f"{folder}/cpulist"] = format_list([n for n in parse_list(line) if n < _MAX_CPUS])
        elif folder and f"{folder}/distance" not in files:
            files[f"{folder}/distance"] = line
    files.update({path: "\n".join(lines) for path, lines in sizes.items()})
    return files


def _parse_numactl_nodes(text: str) -> dict[str, str]:
    files: dict[str, str] = {}
    sizes: dict[str, list[str]] = {}
    for match in re.finditer(r"^node ([0-9]{1,3}) cpus:(.*)$", text, re.MULTILINE):
        # With --cpu-compress they are ranges, and their number behind them.
        words = re.sub(r"\(\d+\)", "", match.group(2)).replace(",", " ").split()
        cpus = [cpu for word in words for cpu in parse_list(word) if cpu < _MAX_CPUS]
        files[f"{_NODE}/node{match.group(1)}/cpulist"] = format_list(cpus)
    for name, key in (("size", "MemTotal"), ("free", "MemFree")):
        for match in re.finditer(
            rf"^node ([0-9]{{1,3}}) {name}: ([0-9]{{1,15}}) MB$", text, re.MULTILINE
        ):
            line = f"Node {match.group(1)} {key}: {int(match.group(2)) * 1024} kB"
            sizes.setdefault(f"{_NODE}/node{match.group(1)}/meminfo", []).append(line)
    for match in re.finditer(r"^ *([0-9]{1,3}): +([0-9 ]+)$", text, re.MULTILINE):
        files[f"{_NODE}/node{match.group(1)}/distance"] = match.group(2).strip()
    files.update({path: "\n".join(lines) for path, lines in sizes.items()})
    return files


def _parse_bus(text: str) -> dict[str, str]:
    """Read lines of: address, maker, device, class, node."""
    files = {}
    for line in text.splitlines()[:_MAX_DEVICES]:
        words = line.split()
        if len(words) >= 4 and re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", words[0]):
            for name, value in zip(
                ("vendor", "device", "class", "numa_node"), words[1:], strict=False
            ):
                files[f"{_PCI}/{words[0]}/{name}"] = value
    return files


def _parse_cpu(text: str | None) -> int | None:
    """Read the number of a CPU that a machine can have."""
    cpu = parse_int(text)
    return cpu if cpu is not None and cpu < _MAX_CPUS else None
