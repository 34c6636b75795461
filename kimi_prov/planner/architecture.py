"""Counts a model's parameters and bytes from its dimensions; nothing here is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Architecture

# Bytes of one routed expert's weight, scales included: int4 has a bf16 scale for each 32 weights,
# fp8 an fp32 scale for each 128 x 128 block, nvfp4 an fp8 scale for each 16.
_EXPERT_WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1 + 4 / 16384, "int4": 0.5 + 2 / 32, "nvfp4": 0.5625}
_BF16 = 2


def routed_params(a: Architecture) -> int:
    """Count the weights of all routed experts."""
    return (a.layers - a.dense_layers) * a.experts * 3 * a.hidden * a.expert_width


def attention_params(a: Architecture) -> int:
    """Count the weights of MLA attention in all layers, its norms included."""
    down = a.hidden * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim)
    up_q = a.q_lora_rank * a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    up_kv = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    out = a.heads * a.v_head_dim * a.hidden
    return a.layers * (down + up_q + up_kv + out + a.q_lora_rank + a.kv_lora_rank)


def other_params(a: Architecture) -> int:
    """Count routers, shared experts, dense layers, norms, embeddings and head."""
    sparse = a.layers - a.dense_layers
    router = sparse * (a.experts * a.hidden + a.experts)
    shared = sparse * a.shared_experts * 3 * a.hidden * a.expert_width
    dense = a.dense_layers * 3 * a.hidden * a.dense_width
    norms = (2 * a.layers + 1) * a.hidden
    return router + shared + dense + norms + 2 * a.vocab * a.hidden


def total_params(a: Architecture) -> int:
    """Count all weights of the language model; a vision tower stands apart."""
    return routed_params(a) + attention_params(a) + other_params(a)


def checkpoint_bytes(a: Architecture, weights_format: str) -> int:
    """Return the bytes of a checkpoint's tensors in a format; headers (0.1 %) are not counted.

    int4 and nvfp4 pack the routed experts alone; fp8 nearly everything but router and embeddings.
    """
    per_weight = _EXPERT_WEIGHT_BYTES[weights_format]
    total, routed = total_params(a), routed_params(a)
    if weights_format == "fp8":
        sparse = a.layers - a.dense_layers
        plain = sparse * (a.experts * a.hidden + a.experts) + 2 * a.vocab * a.hidden
        return round((total - plain) * per_weight) + _BF16 * (plain + a.vision_params)
    return round(routed * per_weight) + _BF16 * (total - routed + a.vision_params)


def replicated_bytes(a: Architecture) -> int:
    """Return the bytes that every rank holds in full: MLA's down projections, routers, vision."""
    down = a.layers * a.hidden * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim)
    router = (a.layers - a.dense_layers) * a.experts * a.hidden
    return _BF16 * (down + router + a.vision_params)


def kv_bytes_per_token(a: Architecture, dtype_bytes: int = _BF16) -> int:
    """Return the cache bytes of one token: MLA keeps one latent for all heads, on every rank."""
    return a.layers * (a.kv_lora_rank + a.qk_rope_head_dim) * dtype_bytes
