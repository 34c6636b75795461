"""Count a model's parameters and bytes from its dimensions and the formats' bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Architecture

_BF16 = 2
_FP8 = 1


def count_expert_params(a: Architecture) -> int:
    """Count the weights of one routed expert: gate, up and down."""
    return 3 * (a.expert_hidden or a.hidden) * a.expert_width


def count_routed_params(a: Architecture) -> int:
    """Count the weights of all routed experts."""
    return (a.layers - a.dense_layers) * a.experts * count_expert_params(a)


def count_attention_params(a: Architecture) -> int:
    """Count the weights of attention in all layers, its norms included."""
    if a.attention == "gqa":
        width = (2 * a.heads + 2 * a.kv_heads) * a.head_dim
        return a.layers * a.hidden * width
    down = a.hidden * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim)
    up_q = a.q_lora_rank * a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    up_kv = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    out = a.heads * a.v_head_dim * a.hidden
    return a.layers * (down + up_q + up_kv + out + a.q_lora_rank + a.kv_lora_rank)


def count_int8_params(a: Architecture) -> int:
    """Count the weights that this project's kernel can hold in int8.

    They are attention without kv_b_proj, which MLA splits, shared experts, dense layers, the head.
    """
    taken_apart = 0
    if a.attention != "gqa":
        taken_apart = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
        taken_apart += a.q_lora_rank + a.kv_lora_rank
    head = a.vocab * a.hidden
    return count_attention_params(a) - a.layers * taken_apart + _count_packed_params(a) + head


def count_step_copies(a: Architecture) -> int:
    """Count the bytes of kv_b_proj and the routers, which a step in one call holds again."""
    split = a.layers * a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    return _BF16 * (split + (a.layers - a.dense_layers) * a.experts * a.hidden)


def count_other_params(a: Architecture) -> int:
    """Count routers, shared experts, dense layers, norms, embeddings and head.

    If the catalogue has a model's total, parameters beyond its dimensions are included.
    """
    if a.params_total is not None:
        return a.params_total - count_routed_params(a) - count_attention_params(a)
    sparse = a.layers - a.dense_layers
    router = sparse * (a.experts * a.hidden + a.experts)
    norms = (2 * a.layers + 1) * a.hidden
    return router + _count_packed_params(a) + norms + 2 * a.vocab * a.hidden


def count_total_params(a: Architecture) -> int:
    """Count all weights of the language model, without a vision tower."""
    return count_routed_params(a) + count_attention_params(a) + count_other_params(a)


def count_checkpoint_bytes(a: Architecture, weights_format: str) -> int:
    """Return the bytes of a checkpoint's tensors in a format; headers (0.1 %) are not counted.

    int4 and mxfp4 pack only the routed experts, nvfp4 also shared experts and dense layers; fp8
    packs nearly everything but router and embeddings.
    """
    per_weight = _count_expert_weight_bytes(weights_format)
    total, packed = count_total_params(a), count_routed_params(a)
    if weights_format == "fp8":
        sparse = a.layers - a.dense_layers
        plain = sparse * (a.experts * a.hidden + a.experts) + 2 * a.vocab * a.hidden
        return round((total - plain) * per_weight) + _BF16 * (plain + a.vision_params)
    if weights_format == "nvfp4":
        packed += _count_packed_params(a)
    return round(packed * per_weight) + _BF16 * (total - packed + a.vision_params)


def count_expert_bytes(a: Architecture, weights_format: str) -> float:
    """Return the bytes of one routed expert in every layer together, as the GPU holds it."""
    sparse = a.layers - a.dense_layers
    return sparse * count_expert_params(a) * _count_expert_weight_bytes(weights_format)


def count_replicated_bytes(a: Architecture) -> int:
    """Return the bytes that every rank holds in full: MLA's down projections, routers, vision."""
    down = a.layers * a.hidden * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim)
    if a.attention == "gqa":
        down = 0
    router = (a.layers - a.dense_layers) * a.experts * a.hidden
    return _BF16 * (down + router + a.vision_params)


def count_rank_bytes(a: Architecture, weights_format: str, ranks: int) -> int:
    """Return the bytes of weights that each of `ranks` tensor-parallel GPUs holds."""
    replicated = count_replicated_bytes(a)
    return (count_checkpoint_bytes(a, weights_format) - replicated) // ranks + replicated


def count_plain_bytes(a: Architecture, weights_format: str, ranks: int = 1) -> int:
    """Return the bytes of all that is not a routed expert, on each of `ranks` GPUs."""
    routed = round(
        (a.layers - a.dense_layers)
        * a.experts
        * count_expert_params(a)
        * _count_expert_weight_bytes(weights_format)
    )
    replicated = count_replicated_bytes(a)
    return (count_checkpoint_bytes(a, weights_format) - routed - replicated) // ranks + replicated


def count_table_bytes(a: Architecture) -> int:
    """Return the bytes of the embedding, and of the head, each."""
    return _BF16 * a.vocab * a.hidden


def count_vision_bytes(a: Architecture) -> int:
    """Return the bytes of the vision tower."""
    return _BF16 * a.vision_params


def count_dense_bytes(a: Architecture, weights_format: str) -> int:
    """Return the bytes of the dense layers' feed-forward networks; int4 and mxfp4 leave them."""
    packed = weights_format in {"fp8", "nvfp4"}
    return round(
        _count_dense_params(a) * (_count_expert_weight_bytes(weights_format) if packed else _BF16)
    )


def count_kv_bytes_per_token(a: Architecture, dtype_bytes: int = _BF16, ranks: int = 1) -> int:
    """Return the cache bytes of one token on one of `ranks` tensor-parallel ranks.

    MLA keeps one latent for all heads, on every rank; grouped heads are split over ranks. A sparse
    indexer keeps further bytes of its own.
    """
    layers = a.layers if a.kv_layers is None else a.kv_layers
    if a.attention == "gqa":
        heads = -(-a.kv_heads // min(ranks, a.kv_heads))
        per_layer = 2 * heads * a.head_dim * dtype_bytes
    elif dtype_bytes == _FP8 and a.kv_fp8_bytes_per_layer is not None:
        per_layer = a.kv_fp8_bytes_per_layer
    else:
        per_layer = (a.kv_lora_rank + a.qk_rope_head_dim) * dtype_bytes
    return layers * per_layer + a.indexer_layers * a.indexer_bytes_per_token


def count_state_bytes(a: Architecture, ranks: int = 1) -> int:
    """Return the bytes that linear attention keeps for one sequence on each of `ranks` ranks."""
    return -(-a.state_bytes_per_sequence // ranks)


def count_expanded_kv_bytes_per_token(a: Architecture, dtype_bytes: int = _BF16) -> int:
    """Return the cache bytes of a token in engines that keep every head's own keys and values."""
    if a.attention == "gqa":
        return count_kv_bytes_per_token(a, dtype_bytes)
    keys = a.qk_nope_head_dim + a.qk_rope_head_dim
    return a.layers * a.heads * (keys + a.v_head_dim) * dtype_bytes


def _count_expert_weight_bytes(weights_format: str) -> float:
    """Return the bytes of one routed expert's weight, scales included."""
    return load_catalogue().format(weights_format).expert_bytes


def _count_packed_params(a: Architecture) -> int:
    """Count shared experts and dense layers."""
    sparse = a.layers - a.dense_layers
    return sparse * a.shared_experts * 3 * a.hidden * a.expert_width + _count_dense_params(a)


def _count_dense_params(a: Architecture) -> int:
    return a.dense_layers * 3 * a.hidden * a.dense_width
