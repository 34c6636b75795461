"""The command line of KTransformers: sglang's server with kt-kernel's experts in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.target import kt_quantise, layout

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Model
    from kimi_prov.planner.engine import Choice
    from kimi_prov.planner.memory import Budget
    from kimi_prov.planner.placement import Placement
    from kimi_prov.planner.wishes import Wishes

# Prompts of that many tokens and more are computed layer by layer on the GPU (registry of kt
# 0.7.2 for Kimi-K2-Thinking).
PREFILL_FROM = 400


def flags(
    wishes: Wishes, model: Model, choice: Choice, budget: Budget, place: Placement
) -> dict[str, Any]:
    """Give the flags of sglang-kt 0.7.2 but those of one instance.

    Deferred experts are left to the inventory: they win time and change what a layer sees.
    """
    card = budget.graphics
    assert card is not None, "a hybrid without GPU"  # noqa: S101
    pools = place.pools
    method = (choice.engine.methods or {}).get(choice.weights_format, "RAWINT4")
    # From converted experts there is no way back to the GPU's form.
    on_gpu = (
        {} if method in kt_quantise.KERNELS else {"kt-gpu-prefill-token-threshold": PREFILL_FROM}
    )
    chosen: dict[str, Any] = {
        "kt-method": method,
        "kt-cpuinfer": place.pool_threads,
        "kt-threadpool-count": len(pools),
        "kt-numa-nodes": list(pools),
        "kt-num-gpu-experts": card.experts,
        **on_gpu,
        "tensor-parallel-size": card.ranks,
        "mem-fraction-static": _fraction(budget),
        "context-length": budget.context,
        "max-total-tokens": max(budget.kv_tokens, budget.context),
        "max-running-requests": int(wishes.concurrency),
        "chunked-prefill-size": card.batched_tokens,
        "attention-backend": "flashinfer",
        "disable-shared-experts-fusion": True,
        "trust-remote-code": True,
        "enable-metrics": True,
    }
    if budget.kv_dtype == "fp8":
        chosen["kv-cache-dtype"] = "fp8_e4m3"
    if model.tool_call_parser:
        chosen["tool-call-parser"] = model.tool_call_parser
    if model.reasoning_parser:
        chosen["reasoning-parser"] = model.reasoning_parser
    return chosen


def environment() -> dict[str, str]:
    """Give what sglang reads: where the CUDA kernels are that the installation assembles.

    Not in the environment: they are verified at each start, which wants the directory writable and
    4 GB free there (sgl_kernel/payload_runtime.py of 0.3.21.post2).
    """
    return {"SGL_KERNEL_KT_CACHE_DIR": layout.KT_CUDA}


def _fraction(budget: Budget) -> float:
    """Share of a GPU for weights and cache; what layers in turn and kernels need stays free."""
    card = budget.graphics
    assert card is not None  # noqa: S101
    share = (card.weights + max(0, budget.kv_bytes)) / max(1, card.memory)
    return min(0.98, max(0.5, int(share * 100 + 1) / 100))
