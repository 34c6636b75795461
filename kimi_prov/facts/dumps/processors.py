"""Processors and their nodes, from lscpu and dmidecode, in the form of the kernel's files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.numbers import parse_int, parse_leading_int
from kimi_prov.facts.dumps import local_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MAX_CPUS = 8192
# A line that goes on with the value of the one before: indented, small words, no field of its own.
_CONTINUED = re.compile(r"[ \t]{8,}[a-z0-9_][a-z0-9_ ]*[ \t]*$")
_COUNTS = ("Core(s) per socket", "Thread(s) per core", "Socket(s)")
_FIELDS = (
    ("vendor_id", "Vendor ID"),
    ("cpu family", "CPU family"),
    ("model", "Model"),
    ("model name", "Model name"),
    ("stepping", "Stepping"),
    ("flags", "Flags"),
)


def flatten_rows(rows: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  (any JSON)
    """Yield field and value of `lscpu -J`; since version 2.40 rows are nested."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            if isinstance(row.get("field"), str) and row.get("data") is not None:
                yield row["field"].rstrip(": "), str(row["data"])
            yield from flatten_rows(row.get("children"))


def parse_lscpu(text: str) -> dict[str, str]:
    """Parse the plain output of lscpu, flat or indented, in any of the known languages."""
    result: dict[str, str] = {}
    clusters: list[dict[str, str]] = []
    for line in _join_wrapped(text.splitlines()):
        word, mark, value = re.split(r"[ \t]*([:\uff1a])", f"{line}:", maxsplit=1)
        key, value = local_words.name_field(word.strip()), value.removesuffix(":").strip()
        if mark == "\uff1a" or ":" in line:
            if key == "Model name" and value:
                clusters.append({})
            if clusters and value:
                clusters[-1].setdefault(key, value)
            if value or re.fullmatch(r"NUMA node\d+ CPU\(s\)", key):
                result.setdefault(key, value)
    return _add_clusters(_count_clusters(result), clusters)


def _count_clusters(fields: dict[str, str]) -> dict[str, str]:
    """Count cores where lscpu knows clusters and no sockets, as on some ARM servers."""
    each = parse_leading_int(fields.get("Core(s) per cluster"))
    many = parse_leading_int(fields.get("Cluster(s)"))
    if not each or not many or parse_leading_int(fields.get("Socket(s)")):
        return fields
    return {**fields, "Core(s) per socket": str(each * many), "Socket(s)": "1"}


def _join_wrapped(lines: list[str]) -> list[str]:
    """Join flags that lscpu cut at the width of a terminal, in the middle of words."""
    width = max(map(_measure_width, lines), default=0)
    parts: list[list[str]] = []
    in_flags = False
    for position, line in enumerate(lines):
        in_flags = in_flags and bool(_CONTINUED.match(line))
        if in_flags:
            # A break at a blank leaves the line before one shorter where ends were trimmed.
            gap = "" if _measure_width(lines[position - 1]) >= width else " "
            parts[-1].append(gap + line.lstrip())
        else:
            parts.append([line])
            word = re.split("[:\uff1a]", line[:80])[0].strip()
            in_flags = local_words.name_field(word) == "Flags"
    return ["".join(part) for part in parts]


def _measure_width(line: str) -> int:
    """Return the columns that a line takes: a Chinese character has two."""
    return len(line) + sum(char > "\u2e80" for char in line[:60])


def _add_clusters(fields: dict[str, str], clusters: list[dict[str, str]]) -> dict[str, str]:
    """Count the cores of all clusters where lscpu lists several kinds of cores (ARM)."""
    counts = [
        [parse_leading_int(one.get(key)) or 1 for key in _COUNTS]
        for one in clusters
        if len(one) > 1
    ]
    names = {one["Model name"] for one in clusters}
    threads = [cores * each * sockets for cores, each, sockets in counts]
    if len(names) < 2 or sum(threads) != parse_leading_int(fields.get("CPU(s)")):
        return fields
    cores = sum(one[0] * one[2] for one in counts)
    return {**fields, "Core(s) per socket": str(cores), "Socket(s)": "1"}


def normalise_lscpu(fields: Mapping[str, str]) -> dict[str, str]:
    """Return lscpu's fields as `lscpu -J`, /proc/cpuinfo, `lscpu -e` and the list of nodes."""
    texts = {
        "lscpu.json": json.dumps(
            {"lscpu": [{"field": f"{key}:", "data": value} for key, value in fields.items()]}
        )
    }
    arm = fields.get("Architecture", "").startswith(("aarch64", "arm"))
    lines = [
        f"{('Features' if arm and name == 'flags' else name)}\t: {fields[key]}"
        for name, key in _FIELDS
        if fields.get(key) not in (None, "-")
    ]
    texts["cpuinfo.txt"] = "\n".join(lines) + "\n"
    nodes = list_nodes(fields)
    places = locate_cpus(
        sockets=parse_leading_int(fields.get("Socket(s)")),
        cores=parse_leading_int(fields.get("Core(s) per socket")),
        threads=parse_leading_int(fields.get("Thread(s) per core")),
        online=parse_list(fields.get("On-line CPU(s) list")),
        nodes=nodes,
    )
    if places:
        texts["lscpu_e.txt"] = places
    if nodes:
        texts["nodes.txt"] = "\n".join(f"{node} {cpus}" for node, cpus in nodes.items())
    return texts


def list_nodes(fields: Mapping[str, str]) -> dict[int, str]:
    """List the CPUs of each NUMA node; a node without any has an empty list."""
    result = {}
    for key, value in fields.items():
        match = re.fullmatch(r"NUMA node(\d{1,3}) CPU\(s\)", key)
        if match:
            result[int(match[1])] = value if value != "-" else ""
    return result


def locate_cpus(
    *,
    sockets: int | None,
    cores: int | None,
    threads: int | None,
    online: Sequence[int] = (),
    nodes: Mapping[int, str] | None = None,
) -> str | None:
    """Return `lscpu -e` of counts alone: threads of a core are numbered as Linux does it.

    The second threads come after all first ones; on a virtual machine they may be next to each
    other, which changes no count.
    """
    if not sockets or not cores or sockets * cores * (threads or 1) > _MAX_CPUS:
        return None
    total, total_threads = sockets * cores, sockets * cores * (threads or 1)
    numbers = list(online) if len(online) == total_threads else list(range(total_threads))
    of_node = {cpu: node for node, text in (nodes or {}).items() for cpu in parse_list(text)}
    lines = ["CPU NODE SOCKET CORE ONLINE"]
    for position, cpu in enumerate(numbers):
        core = position % total
        lines.append(f"{cpu} {of_node.get(cpu, -1)} {core // cores} {core} yes")
    return "\n".join(lines)


def normalise_dmidecode(text: str) -> dict[str, str]:
    """Return the populated processors of `dmidecode -t processor` as the kernel's files."""
    result = []
    for block in text.split("\n\n"):
        if not re.search(r"^Processor Information\s*$", block, re.MULTILINE):
            continue
        row = parse_lscpu(block)
        if "Unpopulated" not in row.get("Status", "") and row.get("Version", "").strip():
            result.append(row)
    if not result:
        return {}
    first = result[0]
    cores = parse_int(first.get("Core Count"))
    all_threads = parse_int(first.get("Thread Count"))
    texts = {"cpuinfo.txt": f"model name\t: {first['Version']}\n"}
    per_core = all_threads // cores if cores and all_threads else 1
    places = locate_cpus(sockets=len(result), cores=cores, threads=per_core)
    return {**texts, "lscpu_e.txt": places} if places else texts
