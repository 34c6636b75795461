"""Experts by this project's own kernel: in vLLM's own OpenMP threads, nothing is handed over."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

import torch

from kimi_kt_experts import settings
from kimi_kt_experts.checkpoint import PROJECTIONS
from kimi_kt_experts.kernel import CHUNK, Layer, Library
from kimi_kt_experts.refusal import Refusal

if TYPE_CHECKING:
    from kimi_kt_experts import checkpoint

log = logging.getLogger("vllm.kimi_kt_experts")


@functools.cache
def library() -> Library:
    """Load the kernel once a process, and say which build of it runs."""
    found = Library()
    threads = found.threads()
    if threads != torch.get_num_threads():
        raise Refusal(
            f"the kernel has {threads} threads and torch has {torch.get_num_threads()}",
            "one OpenMP for both",
            "run `python -m kimi_kt_experts.build` again, or set KIMI_EXPERTS=kt",
        )
    log.info("own kernel for %s: %d threads", found.build, threads)
    _cut_over_nodes(found)
    return found


def _cut_over_nodes(kernel: Library) -> None:
    """Have each node's threads read weights of their own node, where threads are on several."""
    bound = kernel.bound_nodes()
    if min(bound) < 0:
        bound = _bind_threads(kernel)
    nodes = sorted(set(bound))
    if len(nodes) > 1:
        kernel.cut([nodes.index(node) for node in bound], nodes)
        log.info("weights are cut over NUMA nodes %s", ",".join(map(str, nodes)))


def _bind_threads(kernel: Library) -> list[int]:
    """Bind each thread to one CPU where they are on several nodes; give their nodes.

    vLLM 0.32 allows all its CPUs to each thread, unless libgomp is preloaded.
    """
    cpus = sorted(os.sched_getaffinity(0))
    nodes = settings.find_nodes(cpus)
    if len(set(nodes)) < 2 or min(nodes) < 0:
        return []
    if len(cpus) != kernel.threads():
        log.info(
            "weights lie where they come: %d threads have %d CPUs", kernel.threads(), len(cpus)
        )
        return []
    kernel.bind(cpus)
    os.sched_setaffinity(
        0, [cpu for cpu, node in zip(cpus, nodes, strict=True) if node == nodes[0]]
    )
    return nodes


class Experts(Layer):
    """A layer's experts, for tensors."""

    def __call__(
        self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of each token's experts, bf16 like `hidden`."""
        hidden = hidden.contiguous()
        ids = ids.to(torch.int64).contiguous()
        weights = weights.to(torch.float32).contiguous()
        out = torch.empty_like(hidden)
        for start in range(0, hidden.shape[0], CHUNK):
            tensors = [t[start : start + CHUNK] for t in (hidden, ids, weights, out)]
            self.compute(len(tensors[0]), ids.shape[1], *(t.data_ptr() for t in tensors))
        return out


def load(
    kernel: Library,
    layer: checkpoint.Layer,
    files: checkpoint.Mapping,
    sizes: tuple[int, int],
    part: tuple[int, int],
) -> Experts:
    """Load a layer from where its files are mapped; `sizes`: hidden size and an expert's width."""
    rows = [layer.weights[p] for p in PROJECTIONS] + [layer.scales[p] for p in PROJECTIONS]
    addresses = [files.address(row[expert]) for expert in range(layer.experts) for row in rows]
    return Experts(kernel, addresses, (layer.experts, *sizes), part)
