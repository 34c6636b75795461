"""Whose memory a NUMA node is: the processors' own, or that of a GPU, HBM or an expander.

Nodes without processors are memory of another kind: the GPUs of Grace machines (and an empty node
for each instance that a GPU can be cut into), the HBM of a Xeon Max in flat mode, CXL. What is
counted as the machine's memory, and bound, is the memory of nodes with processors.

Decides: which NUMA nodes are the machine's own memory.
Held by: tests/unit/contract/test_node_kinds.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract.gpu_rows import get_gpu_memory, get_gpu_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.machine import NodeFacts, NodeKind, OtherMemory

# Processors that share their memory's addresses with the GPUs, by the GPUs' names.
_GRACE = re.compile(r"\bG[HB]\d{3}\b")
_MAX_SERIES = re.compile(r"\bMax\s+94\d\dC?\b|\b94\d\d\s+Max\b", re.IGNORECASE)
# HBM of a Xeon Max: 64 GiB a socket.
_MAX_HBM_BYTES = 66 << 30
# Grace has an empty node for each of seven more instances of a GPU.
_GRACE_EMPTY_NODES = 7
# A GPU's node has a little less than the driver tells, which counts what it keeps for itself.
_MIN_SHARE, _MAX_SHARE = 0.9, 1.02


class Clues(NamedTuple):
    """What tells the kinds of nodes apart; `gpu_nodes`: those that the driver names."""

    arch: str | None
    cpu_model: str | None
    gpu_nodes: frozenset[int]
    gpu_sizes: tuple[int, ...]
    grace: bool


def classify_memory(facts: Facts) -> None:
    """Give each NUMA node its kind, and count only the memory of nodes with processors.

    Facts that have kinds stay as they are. Facts of an earlier version list as processors only
    those that the probe itself could use: there a node without any is not called an expander.
    """
    nodes = facts["numa"]["nodes"]
    if not nodes or facts["memory"].get("other_bytes") is not None:
        return
    known = any("kind" in node for node in nodes)
    clues = _find_clues(facts)
    empty = sum(node.get("memory_total_bytes") == 0 for node in nodes if not node["cpus"])
    kinds = [
        node.get("kind")
        or (node["cpus"] is not None and _find_kind(node, clues, empty, known=known))
        for node in nodes
    ]
    if not known and not {"gpu", "hbm"} & set(kinds):
        return
    for node, kind in zip(nodes, kinds):
        if node["cpus"] is not None:
            node["kind"] = kind or None
    other: OtherMemory = {}
    free = 0
    for node in list_other_nodes(nodes):
        kind, size = node.get("kind"), node.get("memory_total_bytes") or 0
        if kind is not None and kind != "ddr":
            other[kind] = other.get(kind, 0) + size
            free += node.get("memory_available_bytes") or node.get("memory_free_bytes") or 0
    memory = facts["memory"]
    total, available = memory["total_bytes"], memory.get("available_bytes")
    left = total - sum(other.values()) if total is not None else None  # type: ignore[arg-type]
    if other and left is not None and left > 0:
        memory["total_bytes"] = left
        if available is not None:
            memory["available_bytes"] = max(0, min(available - free, left))
    if known or other:
        memory["other_bytes"] = other


def list_own_nodes(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """List the nodes whose memory is the processors' own; without kinds those with processors."""
    return [node for node in nodes if node.get("kind") == "ddr" or node["cpus"] != ""]


def list_other_nodes(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """List the nodes whose memory is a GPU's, HBM or an expander's."""
    return [node for node in nodes if node["cpus"] == "" and node.get("kind") not in (None, "ddr")]


def _find_clues(facts: Facts) -> Clues:
    gpus = facts["gpus"]
    return Clues(
        arch=facts["host"].get("arch"),
        cpu_model=facts["cpu"]["model"],
        gpu_nodes=frozenset(
            node for gpu in gpus if (node := gpu.get("memory_numa_node")) is not None
        ),
        gpu_sizes=tuple(size for gpu in gpus if (size := get_gpu_memory(gpu))),
        grace=any(_GRACE.search(get_gpu_name(gpu) or "") for gpu in gpus),
    )


def _find_kind(node: NodeFacts, clues: Clues, empty: int, *, known: bool) -> NodeKind | None:
    size = node.get("memory_total_bytes")
    if node["cpus"] or not size:
        return "ddr" if node["cpus"] and size != 0 else None
    if node["id"] in clues.gpu_nodes:
        return "gpu"
    if clues.arch != "x86_64":
        near = any(_MIN_SHARE * gpu <= size <= _MAX_SHARE * gpu for gpu in clues.gpu_sizes)
        if near or clues.grace or empty >= _GRACE_EMPTY_NODES:
            return "gpu"
    if _MAX_SERIES.search(clues.cpu_model or "") and size <= _MAX_HBM_BYTES:
        return "hbm"
    return "cxl" if known else None
