"""Find the outputs of commands in a text, by their content.

A text may have several of them, pasted one after the other, with or without prompts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.facts.dumps import local_words, pasted
from kimi_prov.facts.dumps.reports import is_of_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the first line of an output looks like. The order matters where two would match. Each is
# tried at every line: blanks are bounded and stay within the line, or a long text takes for ever.
_STARTS = {
    "dmidecode": r"# dmidecode \d|Handle 0x[0-9A-Fa-f]+, DMI type"
    r"|(?:Memory Device|Processor Information)[ \t]*$",
    "json": r"(?:\S{1,80} \| (?:SUCCESS|CHANGED) =>)?[ \t]*(?:\{\s*\"|\[\s*\{\s*\")",
    "xml": r"[ \t]*(?:<\?xml [^\n]*\s*(?:<!DOCTYPE nvidia_smi_log[^\n]*\s*)?)?<nvidia_smi_log",
    "table": r"\|?[ \t]{0,80}NVIDIA-SMI \d",
    "query": r"=+\s*NVSMI LOG\s*=+",
    "list": r"GPU \d+: [^\n]+ \(UUID: ",
    "report": r"[ \t*-]{0,80}GPU \d+(?:,\d+)*:[ \t*]{1,80}"
    r"(?:NVIDIA|Tesla|Quadro|GeForce|AMD|HGX|DGX|GRID|RTX|GTX|G?[ABHL]B?\d{2,3})\b"
    r"|GPU models and configuration ?: ?(?!Could not|N/A|No CUDA)\S"
    r"|(?:Nvidia driver version|CUDA Driver Version) *: *\d",
    "summary": r"[ \t*-]{0,80}CPU:[ \t*]{1,80}(?:\d ?x )?(?:AMD|Intel|Ampere)\b"
    r"|[ \t*-]{0,80}(?:RAM|Memory):[ \t*]{1,80}[\d.]{1,12} ?[MGT]i?B?\b",
    "habana": r"HPU devices: \d+x|\| HL-SMI Version",
    "topology": r"[ \t\x1b\[0-9;m]*GPU0[ \t\x1b]",
    "csv": r"\"?[a-z_.]+\"?(?: \[[\w%]+\])?(?:, ?\"?[a-z_.]+\"?(?: \[[\w%]+\])?)*\r?$"
    r"(?<=[a-z\]\"])",
    "rows": r"\d{1,2}, [^,\n]*(?:NVIDIA|Tesla|GeForce|Quadro)[^,\n]*,"
    r"|(?:NVIDIA|Tesla) [^,\n]+, \d+|GPU-[0-9a-f-]{36}, ",
    "no_gpu": r"No devices were found|NVIDIA-SMI has failed"
    r"|(?:-?bash: |sh: )?nvidia-smi: (?:command )?not found",
    "cpuinfo": r"processor\s*:\s*\d|[ \t]{0,10}(?:\d{1,4}[ \t]+)?model name[ \t]*:[ \t]*\S",
    "meminfo": r"MemTotal:\s+\d+ kB",
    "free": rf"[ \t]+(?:total[ \t]+used[ \t]+free|{local_words.FREE_HEADS})"
    r"|Mem[:.][ \t]+[\d.]{1,12}[KMGT]?i?B?[ \t]+[\d.]{1,12}[KMGT]?i?B?[ \t]",
    "numactl": r"available: \d+ nodes?",
    "os_line": r"[ \t]{0,8}OS {0,60}: \S[^\n]{2,100}\((?:x86_64|aarch64)\)[ \t]*$",
    "kube_node": r"Name: +\S+[ \t]*\n(?:Roles|Labels): ",
    "rocminfo": r"ROCk module|[ \t]*HSA Agents[ \t]*$",
    "ggml": r"(?:[^\n]{0,40}\b)?ggml_(?:cuda_init|init_cublas): found \d+ \w+ devices",
    "lshw": r"[ \t]*\*-(?:core|firmware|cpu|memory|bank|display)(?::\d+)?(?: UNCLAIMED)?[ \t]*$",
    "ilo": r"[ \t]*Physical Memory \(\d+ DIMM\(s\) for ",
    "scontrol": r"[ \t]*NodeName=\S",
    "sinfo": r"(?=[^\n]{0,300}\bGRES\b)[ \t|]*[A-Z][A-Z_:()/+]*"
    r"(?:[ \t|]+[A-Z][A-Z_:()/+]*){1,20}[ \t|]*$",
    "lscpu_e": r"[ \t]*CPU[ \t]+(?:NODE|SOCKET|CORE)\b",
    "lscpu": rf"[ \t]*(?:Architecture|{local_words.LSCPU_HEADS})[ \t]?[:\uff1a][ \t]*\S"
    r"|[ \t]{0,8}(?:Model name:[ \t]+\S|(?:CPU|Socket|Core|NUMA node)\(s\)[ \w]{0,12}:[ \t]+\d"
    r"|Thread\(s\) per core:[ \t]+\d)",
    "lstopo": r"[ \t]*Machine \([\d.]+[MGT]i?B total\)",
    "inxi": r"[ \t]*(?:CPU|Graphics|Info):(?:[ \t]*\n[ \t]+| )"
    r"(?:Info|Device-1|Processes|Memory|Topology): ",
    "modules": r"[ \t]*(?:\d{1,3}[ \t]+)?Size: \d{1,7} [KMGT]i?B[ \t]*$"
    r"|[ \t]*Version: (?:Intel|INTEL|AMD|Ampere)\S* \S",
    "lspci": r"[ \t]*(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [\"A-Z3]",
    "lsblk": r"[ \t]*NAME[ \t][A-Z: \t-]{0,400}\bSIZE\b",
    "ip": r"\d+: [^\s:]+: <",
    "ip_brief": r"[a-z][\w.@-]+[ \t]+(?:UP|DOWN|UNKNOWN)(?:[ \t]|$)",
    "amd_static": r"GPU: \d{1,3}[ \t]*\n[ \t]+(?:ASIC|BUS|VRAM|DRIVER|BOARD|IFWI|VBIOS|NUMA):",
    "amd_table": r"\| AMD-SMI ",
    "rocm": r"GPU\[\d+\]\s*:|[= \t]{1,200}ROCm System Management Interface",
    "nvrm": r"NVRM version:",
    "os_release": r"(?:PRETTY_NAME|NAME|ID|VERSION_ID|VERSION)=",
    "machine_arch": r"(?:x86_64|aarch64)[ \t]*$",
    "uname": r"Linux \S+ \d{1,4}\.\d{1,4}[^\n]* (?:x86_64|aarch64|ppc64le)\b",
}
# What ends an output: a prompt, a fence, a rule, a heading with a path.
_END = (
    r"(?:\S{1,80}@[^\s:]{1,120}[: ][^\n]{0,80}?[#$%] ?"
    r"|\[\S+@\S+ [^\]\n]{0,80}\][#$] ?|[$#>+%]+ )[\w/.]+"
    r"|```|~~~|_{20,}|-{20,}[ \t]*$|\*\*\* /|#{2,} |={3,} \w"
)
_BOUNDARY = re.compile(
    "^(?:"
    + "|".join(f"(?P<{kind}>{start})" for kind, start in _STARTS.items())
    + f"|(?P<end>{_END}))",
    re.MULTILINE,
)
# Their first lines come once for each part of the same output.
_REPEATED = frozenset(
    (
        "dmidecode",
        "topology",
        "list",
        "report",
        "summary",
        "rows",
        "free",
        "cpuinfo",
        "lscpu",
        "inxi",
        "modules",
        "amd_static",
        "lspci",
        "ip",
        "ip_brief",
        "rocm",
        "os_release",
        "scontrol",
        "rocminfo",
        "lshw",
    )
)
# JSON by a key of it.
_DOCUMENTS = {"lscpu": "lscpu_json", "blockdevices": "lsblk_json", "ifname": "ip_json"}
_DOCUMENTS |= dict.fromkeys(("ansible_facts", "ansible_processor"), "ansible")
# More boundaries than any dump of a machine has.
_MAX_BOUNDARIES = 200_000
# Characters of broken JSON, after which no more of it is tried: each try may read to the end.
_MAX_VAIN = 32 << 20


@dataclass(frozen=True)
class Section:
    """The output of one command: `kind` is a key of `_STARTS`, or that of a JSON document."""

    kind: str
    text: str
    file: str
    document: Any = None


# Outputs that are of a machine; the others stand in files of other kinds too.
# A summary may be an offer: it counts beside others alone.
_WEAK = (
    "json",
    "os_release",
    "uname",
    "ip",
    "ip_brief",
    "lsblk",
    "no_gpu",
    "summary",
    "habana",
    "machine_arch",
    "os_line",
)
_TELLING = frozenset(_STARTS) - set(_WEAK)
_TELLING |= {"lscpu_json", "rocm_json", "redfish", "monitor", "slurm_json", "ansible", "kube_json"}


def is_of_machine(sections: list[Section]) -> bool:
    """Whether outputs are enough to be a recording of a machine."""
    return any(row.kind in _TELLING for row in sections)


def split_text(text: str, file: str) -> list[Section]:
    """Return the outputs in a text; nothing where it has none."""
    text = pasted.strip_frame(text.replace("\r\n", "\n"))
    return [row for row in _join_sections(text, file) if _is_whole(row)]


def _join_sections(text: str, file: str) -> Iterator[Section]:
    kind, start, position, depth, vain = "end", 0, 0, 0, 0
    for _ in range(_MAX_BOUNDARIES):
        match = _BOUNDARY.search(text, position)
        if match is None:
            break
        name = str(match.lastgroup)
        position = max(match.end(), match.start() + 1)
        inner = _measure_indent(match.group())
        if _is_inside(kind, name, match.group()) or (
            (kind, name) == ("report", "summary") and inner > depth
        ):
            continue  # "  Memory: 79.2 GB" below a GPU is that GPU's
        depth = inner
        if kind != "end":
            yield Section(kind, text[start : match.start()], file)
        kind, start = name, match.start()
        if name == "json":
            kind = "end"
            if vain > _MAX_VAIN:
                continue
            row, position, read = _read_json(text, match.start(), file)
            vain += read
            if row is not None:
                yield row
    if kind != "end":
        yield Section(kind, text[start:], file)


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


# Outputs with lines that begin another one elsewhere, as "Architecture:" of kubectl.
_PARTS = {
    ("csv", "rows"),
    ("dmidecode", "modules"),
    ("lscpu", "modules"),
    ("amd_static", "rocm"),
    *((kind, name) for kind in ("kube_node", "ilo") for name in ("lscpu", "summary", "modules")),
}
# What begins a heading or a rule within an output.
_RULES = {"rocm": ("=",), "rocminfo": ("=", "*"), "kube_node": ("-",), "ilo": ("-", " ")}


def _is_inside(kind: str, name: str, line: str) -> bool:
    """Whether a boundary is a line of the output that it stands in."""
    if name == kind:
        return name in _REPEATED
    if (kind, name) in _PARTS or line.startswith(_RULES.get(kind, ())):
        return True
    if name == "end" and kind in ("dmidecode", "query", "xml", "table"):
        # Rules and comments are parts of these; only a prompt ends them.
        return re.match(r"\S+@|\[\S+@|\$ |```|_{20,}|\*\*\* /", line) is None
    return kind in ("xml", "query") and name in ("csv", "ip_brief", "rows", "os_release")


def _is_whole(row: Section) -> bool:
    """Whether the lines after the first are of this output too, where the first is weak."""
    if row.kind == "csv":
        return bool(re.match(r"[^\n]*\b(?:name|memory\.total|gpu_name|uuid)\b", row.text)) and (
            "," in row.text or row.text.count("\n") > 1
        )
    if row.kind == "ip_brief":
        return bool(re.search(r"^lo\s", row.text, re.MULTILINE))
    if row.kind == "os_release":
        return row.text.count("=") > 1
    return True


def _read_json(text: str, start: int, file: str) -> tuple[Section | None, int, int]:
    """Read a JSON document of a known form.

    Return it, the place behind it, and how many characters were read in vain.
    """
    while text[start] not in "{[":
        start += 1
    try:
        document, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        head = text[start : start + 4000]
        damaged = re.search(r'"(lscpu|blockdevices|ifname|ProcessorSummary)"', head)
        row = Section("damaged", head[:200], file, damaged[1]) if damaged else None
        past = error.pos if isinstance(error, json.JSONDecodeError) else start + len(head)
        return row, start + 1, past - start
    kind = _name_json(document)
    row = Section(kind, text[start:end], file, document) if kind else None
    return row, end, 0


def _name_json(document: Any) -> str | None:  # noqa: ANN401  (any JSON)
    first = document[0] if isinstance(document, list) and document else document
    if not isinstance(first, dict):
        return None
    kind = next((kind for key, kind in _DOCUMENTS.items() if key in first), None)
    forms = {
        "rocm_json": any(re.fullmatch(r"card\d+", key) for key in first),
        "monitor": is_of_gpus(document),
        "slurm_json": any(_is_of_slurm(document, key) for key in ("nodes", "sinfo")),
        "kube_json": first.get("kind") in ("Node", "NodeList") or _is_list_of_nodes(first),
    }
    kind = kind or next((name for name, fits in forms.items() if fits), None)
    if kind is not None:
        return kind
    text = json.dumps(document)[:200_000]
    redfish = r'"(?:ProcessorSummary|MemorySummary|ProcessorType|CapacityMiB|@odata\.type)":'
    return "redfish" if re.search(redfish, text) else None


def _is_of_slurm(document: Any, key: str) -> bool:  # noqa: ANN401  (any JSON)
    rows = document.get(key) if isinstance(document, dict) else None
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "gres" in rows[0]


def _is_list_of_nodes(document: Any) -> bool:  # noqa: ANN401  (any JSON)
    items = document.get("items")
    first = items[0] if isinstance(items, list) and items else None
    return isinstance(first, dict) and first.get("kind") == "Node"
