"""Memory of a machine without GPUs: weights, cache and overhead of vLLM's CPU backend.

Decides: the memory budget (without GPUs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.planner.decisions import GIB, Budget, MemoryPart
from kimi_prov.planner.memory.context import choose_context
from kimi_prov.planner.placement.numa import choose_largest_nodes, count_usable_bytes
from kimi_prov.planner.settings.flag_names import VLLM, parse_int

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import ExpertSlices, Workload
    from kimi_prov.planner.settings.parsing import Settings


def make_budget(
    host: Host,
    settings: Settings,
    work: Workload,
    weights: int,
    slices: ExpertSlices | None = None,
    instances: int = 1,
) -> Budget:
    """Share out memory as vLLM's CPU backend does: cache in whole GiB, weights copied into memory.

    `weights`: their bytes in memory; `slices`: how the experts lie on the nodes, where kt-kernel
    computes them or they are repacked. Each of several `instances` has its own node, its own copy
    of the weights and a share of the requests.
    """
    engine, model = work.engine, work.model
    loading = slices.loading if slices else 0
    per_token = model_bytes.count_kv_bytes_per_token(model.architecture)
    free = host.memory_bytes - host.reserve_bytes
    one_node = slices is not None and slices.on_one_node and len(host.nodes) > 1
    if instances > 1 or one_node:
        free = min(
            [free, *(count_usable_bytes(node) for node in choose_largest_nodes(host, instances))]
        )
    free -= weights + engine.overhead_bytes + loading
    if slices is not None and slices.nodes > 1:
        # vLLM keeps its own weights and the cache on the first node only.
        beside = weights - slices.experts + engine.overhead_bytes
        own = -(-(slices.experts + loading + host.reserve_bytes) // slices.nodes)
        free = min(free, min(n.memory_bytes for n in host.nodes) - own - beside)
    most = max(GIB, free // GIB * GIB)
    context = choose_context(settings, model, VLLM, most // per_token)
    each = -(-settings.concurrency // instances)
    requests = parse_int(settings.engine_args.get(VLLM.requests)) or each
    requested = -(-context * requests * per_token // GIB) * GIB
    kv = max(GIB, min(requested, most))
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype="bf16",
        parts=(
            MemoryPart("weights", "Weights", instances * weights),
            MemoryPart("cache", "Cache of conversations", instances * kv),
            MemoryPart("overhead", "The engine's processes", instances * engine.overhead_bytes),
            *(
                [MemoryPart("overhead", "A layer while it is loaded", instances * loading)]
                if loading
                else []
            ),
            MemoryPart("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=model_bytes.count_checkpoint_bytes(model.architecture, work.weights_format),
        instances=instances,
    )


def count_resident_bytes(
    model: Model, weights_format: str, experts: int | None, hosts: int = 1
) -> int:
    """Return the bytes of the weights in memory without GPUs; repacked ones exceed their files.

    `experts`: bytes of the routed experts in memory, None where they stay as in the files.
    Where several `hosts` share the weights by tensor parallelism, the bytes are those of one host.
    """
    shape = model.architecture
    if hosts > 1:
        if experts is None:
            experts = round(model_bytes.count_expert_bytes(shape, weights_format) * shape.experts)
        return experts // hosts + model_bytes.count_plain_bytes(shape, weights_format, hosts)
    if experts is None:
        return model_bytes.count_checkpoint_bytes(shape, weights_format)
    return experts + model_bytes.count_plain_bytes(shape, weights_format)
