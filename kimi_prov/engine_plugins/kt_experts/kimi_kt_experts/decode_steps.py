"""A decode step of vLLM's in one call of the own kernel: norms, attention, router and experts.

vLLM keeps scheduler, sampler, cache and API, and all steps but those where each request has one new
token. What a model needs for it is checked when it is loaded, and a line in the log says what came
of that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import (
    DeepseekScalingRotaryEmbedding,
)
from vllm.model_executor.models.deepseek_v2 import (
    DeepseekV2MLAAttention,
    DeepseekV2Model,
    DeepseekV2MoE,
)

from kimi_kt_experts.dense import Int8Method
from kimi_kt_experts.kernel import Rows
from kimi_kt_experts.native_experts import library
from kimi_kt_experts.step import EXPERT_ROWS, MAX_TOKENS, LayerFields, Step, find_gap

if TYPE_CHECKING:
    from kimi_kt_experts.native_experts import Experts

log = logging.getLogger("vllm.kimi_kt_experts")


class NotCovered(Exception):  # noqa: N818 - a reason, not an error
    """Why vLLM's own layers compute a model's steps."""


def hold(model: torch.nn.Module, experts: dict[int, Experts]) -> None:
    """Compute a loaded model's decode steps in one call each, or say why not.

    `experts`: those of each layer in the own kernel. The dense weights are in int8 by now.
    """
    try:
        module = next((m for m in model.modules() if isinstance(m, DeepseekV2Model)), None)
        steps = _make_steps(module, experts)
    except NotCovered as reason:
        log.info("decode steps: layer by layer in vLLM, because %s", reason)
        return
    assert module is not None  # noqa: S101 - it has steps
    module.forward = steps.forward
    log.info(
        "decode steps: %d layers in one call of the own kernel, for up to %d requests",
        len(steps.step.layers),
        MAX_TOKENS,
    )


def _make_steps(module: DeepseekV2Model | None, experts: dict[int, Experts]) -> Steps:
    if module is None:
        raise NotCovered("the model has other layers")
    _check_engine()
    return Steps(module, experts)


def _check_engine() -> None:
    config = get_current_vllm_config()
    for off, reason in (
        (get_tensor_model_parallel_world_size() != 1, "the engine is split over processes"),
        (config.parallel_config.pipeline_parallel_size != 1, "the engine is split over processes"),
        (config.lora_config is not None, "LoRA changes products"),
        (config.parallel_config.enable_eplb, "experts are moved between places"),
        (config.cache_config.cache_dtype not in ("auto", "bfloat16"), "the cache is not bf16"),
        (not config.model_config.enforce_eager, "the model is compiled"),
        (config.aux_output_config.enabled, "clients are told more than tokens"),
    ):
        if off:
            raise NotCovered(reason)


@dataclass(frozen=True)
class _Part:
    """What a layer's fields point to, and what of it is asked at each step."""

    fields: LayerFields
    kept: tuple[torch.Tensor | Rows, ...]
    attention: Any


class Steps:
    """Takes the place of a model's forward pass for steps of one token a request."""

    def __init__(self, model: DeepseekV2Model, experts: dict[int, Experts]) -> None:
        """Bring together what the kernel needs."""
        self._model, self._forward = model, model.forward
        config = model.config
        if getattr(config, "llama_4_scaling", None) is not None:
            raise NotCovered("positions scale the query")
        parts = [_read_layer(index, layer, experts) for index, layer in enumerate(model.layers)]
        first = model.layers[0].self_attn
        rotary = first.rotary_emb
        if type(rotary) is not DeepseekScalingRotaryEmbedding or rotary.is_neox_style:
            raise NotCovered(f"positions are turned by {type(rotary).__name__}")
        self._attentions = [part.attention for part in parts]
        self._kept = [part.kept for part in parts]
        self._rotary = rotary.cos_sin_cache.float().contiguous()
        sizes = {
            "hidden_size": config.hidden_size,
            "heads": first.num_local_heads,
            "q_rank": first.q_lora_rank,
            "kv_rank": first.kv_lora_rank,
            "rope": first.qk_rope_head_dim,
            "nope": first.qk_nope_head_dim,
            "value": first.v_head_dim,
            "epsilon": config.rms_norm_eps,
            "scale": first.scaling,
            "rotary": self._rotary.data_ptr(),
        }
        gap = find_gap({**sizes, "experts": config.n_routed_experts})
        if gap:
            raise NotCovered(f"the kernel is not made for {gap}")
        self.step = Step(library(), [part.fields for part in parts], sizes)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,  # noqa: ANN401
        inputs_embeds: torch.Tensor | None = None,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - vLLM's own signature
        """Compute a step, or let vLLM's layers."""
        metadata = self._find_metadata(positions)
        if metadata is None or intermediate_tensors is not None or more:
            return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **more)
        hidden = self._model.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        # In place, so never in what the caller gave.
        hidden = hidden.clone() if inputs_embeds is not None else hidden.contiguous()
        residual = torch.empty_like(hidden)
        self._compute(metadata, positions, hidden, residual)
        normed, _ = self._model.norm(hidden, residual)
        return normed

    def _find_metadata(self, positions: torch.Tensor) -> Any:  # noqa: ANN401 - of vLLM
        """Give the step's metadata where each request has one new token; else nothing."""
        found = get_forward_context().attn_metadata
        if not isinstance(found, dict) or self._model.aux_hidden_state_layers:
            return None
        first = found.get(self._attentions[0].layer_name)
        tokens = len(positions)
        alone = (
            first is not None
            and positions.dim() == 1
            and 0 < tokens <= MAX_TOKENS
            and first.num_prefills == 0
            and first.num_decodes == first.num_decode_tokens == first.num_actual_tokens == tokens
            and first.decode is not None
            and all(found.get(attention.layer_name) is first for attention in self._attentions)
        )
        return first if alone else None

    def _compute(
        self,
        metadata: Any,  # noqa: ANN401 - of vLLM
        positions: torch.Tensor,
        hidden: torch.Tensor,
        residual: torch.Tensor,
    ) -> None:
        slots = get_forward_context().slot_mapping[self._attentions[0].layer_name]
        slots = slots.flatten()[: len(positions)].to(torch.int64).contiguous()
        positions = positions.to(torch.int64).contiguous()
        table = metadata.decode.block_table.to(torch.int32)
        table = table if table.stride(1) == 1 else table.contiguous()
        lengths = metadata.decode.seq_lens.to(torch.int32).contiguous()
        cache = self._attentions[0].kv_cache
        for fields, attention in zip(self.step.layers, self._attentions, strict=True):
            fields.cache = attention.kv_cache.data_ptr()
        self.step.compute(
            tokens=len(positions),
            hidden=hidden.data_ptr(),
            residual=residual.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            blocks=table.data_ptr(),
            lengths=lengths.data_ptr(),
            block_size=cache.shape[1],
            block_stride=cache.stride(0),
            row_stride=cache.stride(1),
            table_stride=table.stride(0),
        )


def _read_layer(index: int, layer: Any, experts: dict[int, Experts]) -> _Part:  # noqa: ANN401
    """Give a layer's fields. What the engine will lay out anew or drop is copied."""
    attention = layer.self_attn
    if not isinstance(attention, DeepseekV2MLAAttention) or attention.q_lora_rank is None:
        raise NotCovered(f"layer {index} has another attention")
    if attention.indexer is not None or attention.mla_attn.g_proj is not None:
        raise NotCovered(f"layer {index} has another attention")
    moe = layer.mlp if isinstance(layer.mlp, DeepseekV2MoE) else None
    dense = moe.shared_experts if moe else layer.mlp
    if dense is None:
        raise NotCovered(f"layer {index} has no shared expert")
    tensors = {
        "input_norm": layer.input_layernorm.weight,
        "post_norm": layer.post_attention_layernorm.weight,
        "q_norm": attention.q_a_layernorm.weight,
        "kv_norm": attention.kv_a_layernorm.weight,
    }
    kept: dict[str, torch.Tensor | Rows] = {
        name: _copy(tensor, torch.bfloat16) for name, tensor in tensors.items()
    }
    kept["kv_b"] = _place(attention.kv_b_proj.weight, attention.num_local_heads)
    fields = LayerFields(
        qkv_a=_find_matrix(index, attention.fused_qkv_a_proj),
        q_b=_find_matrix(index, attention.q_b_proj),
        o=_find_matrix(index, attention.o_proj),
        gate_up=_find_matrix(index, dense.gate_up_proj),
        down=_find_matrix(index, dense.down_proj),
        width=dense.down_proj.quant_method.matrix.columns,
    )
    if moe is not None:
        kept |= _add_experts(index, moe, experts, fields)
    for name, tensor in kept.items():
        at = tensor.address if isinstance(tensor, Rows) else tensor.data_ptr()
        setattr(fields, name, at)
    return _Part(fields, tuple(kept.values()), attention.mla_attn.mla_attn)


def _add_experts(
    index: int,
    moe: DeepseekV2MoE,
    experts: dict[int, Experts],
    fields: LayerFields,
) -> dict[str, torch.Tensor | Rows]:
    runner = moe.experts
    config, router = runner.moe_config, runner.router
    if (
        not isinstance(router, CPURouter)
        or (router.scoring_func, router.num_expert_group) != ("sigmoid", 1)
        or router.routed_scaling_factor != 1.0
        or router.custom_routing_function is not None
        or moe.gate.out_dtype not in (None, torch.bfloat16)
        or runner.routed_input_transform is not None
        or runner.routed_output_transform is not None
        or runner.shared_expert_gate is not None
    ):
        raise NotCovered(f"layer {index} chooses its experts otherwise")
    if index not in experts:
        raise NotCovered(f"the experts of layer {index} are not in the own kernel")
    fields.experts = experts[index].address
    fields.expert_count = moe.n_routed_experts
    fields.expert_width = config.intermediate_size_per_partition
    fields.top_k = config.experts_per_token
    fields.routed_scale = runner.routed_scaling_factor
    fields.renormalise = int(router.renormalize)
    kept: dict[str, torch.Tensor | Rows] = {
        "router": _place(moe.gate.weight, moe.n_routed_experts // EXPERT_ROWS)
    }
    bias = moe.gate.e_score_correction_bias
    if bias is not None:
        kept["bias"] = _copy(bias, torch.float32)
    return kept


def _copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype != dtype:
        raise NotCovered(f"a weight is {tensor.dtype}")
    return tensor.detach().clone().contiguous()


def _place(weight: torch.Tensor, count: int) -> Rows:
    """Copy rows of bf16, cut over nodes as the `count` things that they are."""
    rows = weight.detach().contiguous()
    if rows.dtype != torch.bfloat16:
        raise NotCovered(f"a weight is {rows.dtype}")
    return Rows(library(), rows.data_ptr(), rows.numel() * rows.element_size(), count)


def _find_matrix(index: int, module: Any) -> int:  # noqa: ANN401 - of vLLM
    method = getattr(module, "quant_method", None)
    if not isinstance(method, Int8Method):
        raise NotCovered(f"dense weights of layer {index} are not in int8")
    return method.matrix.address
