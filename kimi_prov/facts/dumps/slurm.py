"""A node as SLURM describes it: scontrol show node, slurmd -C, sinfo, and their JSON.

SLURM knows counts, not names: no processor, and of GPUs the word that the site gave them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.numbers import parse_leading_int
from kimi_prov.facts.dumps.processors import locate_cpus
from kimi_prov.facts.gres import read_gres

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.facts.dumps.gpus import Row

_MAX_GPUS = 64
_MAX_NODES = 20_000
# Sites that do not say how much memory nodes have leave 1 MiB there.
_MIN_MEMORY_MIB = 1024
# More sockets are processors that a cloud counts one by one.
_MAX_SOCKETS = 8
_NODE = re.compile(r"(?m)^[ \t]*NodeName=")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S*)")
_COLUMNS = {
    "NODELIST": "name",
    "NODELIST(REASON)": "",
    "HOSTNAMES": "name",
    "GRES": "gres",
    "MEMORY": "memory",
    "S:C:T": "layout",
    "SOCKETS": "sockets",
    "CORES": "cores",
    "THREADS": "threads",
}
_SLICE_END = re.compile(r"[ _.-]*(?:mig[ _-]?)?\d+[gc]\.\d+gb.*$", re.IGNORECASE)


Counts = tuple[int | None, int | None, int | None]


@dataclass(frozen=True)
class Node:
    """A node: its name, the generic resources, MiB of memory; None is not told.

    `counts`: sockets, cores of a socket, threads of a core.
    """

    name: str
    gres: str
    memory_mib: int | None
    counts: Counts
    arch: str | None = None

    @property
    def kind(self) -> tuple[str, int | None]:
        """What makes two nodes alike for a plan; sockets of cards and what is used do not."""
        return read_gres(self.gres).request, self.memory_mib


@dataclass
class Described:
    """A node in the form of the kernel's files, its GPUs, and words about what was not taken."""

    texts: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    arch: str | None = None


def parse_scontrol(text: str) -> list[Node]:
    """Read `scontrol show node`, with or without -o, `slurmd -C`, or lines of slurm.conf."""
    starts = [match.start() for match in _NODE.finditer(text)][:_MAX_NODES]
    nodes = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        fields = dict(_FIELD.findall(text[start:end]))
        nodes.append(
            Node(
                fields["NodeName"],
                fields.get("Gres") or fields.get("CfgTRES", ""),
                _read_memory(fields.get("RealMemory")),
                _read_counts(
                    fields.get("Sockets") or fields.get("SocketsPerBoard"),
                    fields.get("CoresPerSocket"),
                    fields.get("ThreadsPerCore"),
                ),
                fields.get("Arch"),
            )
        )
    return nodes


def parse_sinfo(text: str) -> list[Node]:
    """Read a table of sinfo whose head has the column GRES."""
    lines = [re.split(r"[\s|]+", line.strip(" \t|")) for line in text.splitlines() if line.strip()]
    names = [_COLUMNS.get(word.upper(), "") for word in lines[0]]
    nodes = []
    for words in lines[1:_MAX_NODES]:
        if len(words) != len(names):
            continue
        row = dict(zip(names, words, strict=True))
        layout = (row.get("layout") or "").split(":")
        counts = layout if len(layout) == 3 else [row.get(key) for key in _COUNTS]
        nodes.append(
            Node(
                row.get("name") or "a node",
                row.get("gres") or "",
                _read_memory(row.get("memory")),
                _read_counts(*counts),
            )
        )
    return nodes


_COUNTS = ("sockets", "cores", "threads")


def read_json(document: Any) -> list[Node]:  # noqa: ANN401  (any JSON)
    """Read the JSON of `scontrol show node` or of sinfo, whose numbers are ranges."""
    rows = document.get("nodes") or document.get("sinfo") or []
    return [
        Node(
            _name_node(row),
            _read_text(row.get("gres")),
            _read_memory(_read_number(row.get("real_memory") or row.get("memory"))),
            _read_counts(*(_read_number(row.get(key)) for key in _COUNTS)),
            row.get("architecture") or None,
        )
        for row in rows[:_MAX_NODES]
        if isinstance(row, dict)
    ]


def _read_counts(sockets: str | None, cores: str | None, threads: str | None) -> Counts:
    return parse_leading_int(sockets), parse_leading_int(cores), parse_leading_int(threads)


def _name_node(row: Mapping[str, object]) -> str:
    nodes = row.get("nodes")
    names = nodes.get("nodes") if isinstance(nodes, dict) else None
    first = names[0] if isinstance(names, list) and names else "a node"
    return str(row.get("name") or first)


def _read_text(value: object) -> str:
    value = value.get("total") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _read_number(value: object) -> str | None:
    value = value.get("maximum", value.get("number")) if isinstance(value, dict) else value
    return str(value) if isinstance(value, int) else None


def _read_memory(text: str | None) -> int | None:
    size = parse_leading_int(text)
    return size if size and size >= _MIN_MEMORY_MIB else None


def describe(nodes: list[Node]) -> Described:
    """Describe one node, the first that has GPUs; others that are not alike are named."""
    result = Described()
    if not nodes:
        return result
    node = next((one for one in nodes if read_gres(one.gres).gpus), nodes[0])
    result.arch = node.arch
    if node.memory_mib:
        result.texts["meminfo.txt"] = f"MemTotal: {node.memory_mib << 10} kB"
    sockets, cores, threads = node.counts
    if sockets and sockets <= _MAX_SOCKETS:
        places = locate_cpus(sockets=sockets, cores=cores, threads=threads)
        result.texts |= {"lscpu_e.txt": places} if places else {}
    result.rows = list(_list_gpus(node, result.notes))
    others = {one.kind: one for one in nodes if one.kind != node.kind}
    if others:
        named = ", ".join(f"{one.name} ({one.gres or 'no GPU'})" for one in others.values())
        result.notes.append(f"{node.name} was read; other nodes differ: {named[:300]}")
    return result


def _list_gpus(node: Node, notes: list[str]) -> Iterator[Row]:
    """Give the cards of a node; what is cut into slices is a card with MIG."""
    index = 0
    for entry in read_gres(node.gres).request.split(","):
        part = read_gres(entry)
        name = _SLICE_END.sub("", part.kind).replace("_", " ").strip().upper()
        if part.slices:
            notes.append(f"{node.name}: {entry} are slices of cards: how many cards is not told")
        elif part.gpus and not name:
            notes.append(f"{node.name}: {entry}: SLURM does not say which GPUs these are")
        cut = {"mig.mode.current": "Enabled"} if part.slices else {}
        for _ in range(1 if part.slices else min(part.gpus, _MAX_GPUS)):
            yield {"index": str(index), "name": name or "a GPU of no name", **cut}
            index += 1
