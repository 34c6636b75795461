"""A machine's facts as the planner sees them: typed, and with what moves by itself taken out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.target.machine import parse_list

if TYPE_CHECKING:
    from collections.abc import Mapping

# Total memory differs by some MiB between two boots of a machine; a plan must not.
_STEP = 1 << 28
_GIB = 1 << 30


@dataclass(frozen=True)
class Node:
    """A NUMA node: its CPUs, one thread of each of its cores, and bytes of memory."""

    id: int
    cpus: tuple[int, ...]
    primary: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Python:
    """An interpreter; `version` such as "3.11"."""

    path: str
    version: str


@dataclass(frozen=True)
class Host:
    """What decisions are made from. None is unknown."""

    facts: Mapping[str, Any]
    memory_bytes: int
    nodes: tuple[Node, ...]
    cpus: tuple[int, ...]
    primary: tuple[int, ...]
    pythons: tuple[Python, ...]
    isa: frozenset[str] | None
    kernel: tuple[int, int]
    virtual: bool
    gpu_bytes: tuple[int, ...]

    @property
    def swap_bytes(self) -> int:
        """Bytes of swap; unknown counts as none."""
        return self.facts["memory"].get("swap_total_bytes") or 0

    @property
    def reserve_bytes(self) -> int:
        """Memory left to the system: 1 GiB, on large machines 2 % of all."""
        return max(_GIB, self.memory_bytes // 50)


def read(facts: Mapping[str, Any]) -> Host:
    """Take a facts document apart. It has to satisfy the facts schema; nulls are allowed."""
    cpu = facts["cpu"]
    cpus = tuple(parse_list(cpu.get("online")))
    primary = tuple(parse_list(cpu.get("primary"))) or cpus
    virtual = bool(facts["host"].get("virtualization") or facts["host"].get("container"))
    memory = _memory(facts["memory"])
    isa = cpu.get("isa")
    return Host(
        facts=facts,
        memory_bytes=memory,
        nodes=_nodes(facts["numa"]["nodes"], primary, memory, virtual=virtual),
        cpus=cpus,
        primary=primary,
        pythons=_pythons(facts["python"]),
        isa=frozenset(isa) if isa is not None else None,
        kernel=_kernel(facts["host"].get("kernel")),
        virtual=virtual,
        gpu_bytes=tuple(gpu.get("memory_total_bytes") or 0 for gpu in facts["gpus"]),
    )


def _memory(memory: Mapping[str, Any]) -> int:
    total = int(memory.get("total_bytes") or 0)
    limit = memory.get("cgroup_limit_bytes")
    usable = min(total, limit) if limit else total
    return int(usable // _STEP * _STEP)


def _nodes(
    rows: list[Mapping[str, Any]], primary: tuple[int, ...], memory: int, *, virtual: bool
) -> tuple[Node, ...]:
    """Nodes that have CPUs we may use and memory.

    A virtual machine gets its memory as it touches it and shows small nodes until then: there a
    node counts as at least its share of the whole.
    """
    share = memory // max(1, len(rows))
    nodes = []
    for row in rows:
        cpus = tuple(parse_list(row.get("cpus")))
        size = int(row.get("memory_total_bytes") or 0)
        if virtual or not size:
            size = max(size, share)
        own = tuple(cpu for cpu in primary if cpu in cpus) or cpus
        if cpus and size:
            nodes.append(Node(int(row["id"]), cpus, own, int(size // _STEP * _STEP)))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _pythons(python: Mapping[str, Any]) -> tuple[Python, ...]:
    """Put the system's own first: an interpreter elsewhere may go away with its environment."""
    found = [
        Python(str(row["path"]), str(row["version"]))
        for row in python.get("others") or []
        if row.get("path") and row.get("version")
    ]
    match = re.match(r"\d+\.\d+", python.get("version") or "")
    path = python.get("path")
    if match and path:
        own = Python(str(path), match.group())
        found.insert(0 if str(path).startswith("/usr/bin/") else len(found), own)
    return tuple(found)


def _kernel(text: str | None) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
