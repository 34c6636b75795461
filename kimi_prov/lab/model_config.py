"""The configuration of the lab's models, as the real repositories have it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.lab import tokenizer
from kimi_prov.lab.model_shapes import (
    DENSE_LAYERS,
    FRAMES,
    GROUP_SIZE,
    KV_RANK,
    MERGED_PATCHES,
    NATIVE,
    NOPE_WIDTH,
    PATCH_PIXELS,
    ROPE_WIDTH,
    VALUE_WIDTH,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.lab.model_shapes import Experts, Shape, Tower

# As in moonshotai/Kimi-K2-Thinking: only the routed experts are quantised.
_QUANTISED: dict[str, Any] = {
    "quantization_config": {
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": False,
                    "group_size": GROUP_SIZE,
                    "num_bits": 4,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "strategy": "group",
                    "symmetric": True,
                    "type": "int",
                },
            }
        },
        "format": "pack-quantized",
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
}
# vLLM knows Kimi K2's configuration. KTransformers takes it from code beside the weights, which the
# real repository has too.
_CODE_FILE = "configuration_deepseek.py"
_CODE = """\
from transformers import DeepseekV3Config

__all__ = ["DeepseekV3Config"]
"""
_WITH_CODE = {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
_PROCESSOR: dict[str, Any] = {
    "patch_size": PATCH_PIXELS,
    "merge_kernel_size": MERGED_PATCHES,
    "temporal_merge_kernel_size": FRAMES,
    "in_patch_limit_each_frame": 4096,
    "in_patch_limit_video": None,
    "patch_limit_on_one_side": 512,
    "fixed_output_tokens": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "sample_fps": 2.0,
    "max_num_frames_each_video": None,
    "timestamp_mode": "hh:mm:ss.fff",
}
_ORIGINAL = "original_max_position_embeddings"
# As in Kimi K2, except the factor, which is 64 in Kimi K2.5.
_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def format_json(document: object) -> bytes:
    """Write a file of JSON as the models have it."""
    return (json.dumps(document, indent=1) + "\n").encode()


def _make_config(special: dict[str, int], shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense_width,
        "moe_intermediate_size": shape.expert_width,
        "num_hidden_layers": shape.layers,
        "first_k_dense_replace": DENSE_LAYERS,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "q_lora_rank": shape.q_rank,
        "kv_lora_rank": KV_RANK,
        "qk_rope_head_dim": ROPE_WIDTH,
        "qk_nope_head_dim": NOPE_WIDTH,
        "v_head_dim": VALUE_WIDTH,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.experts_per_token,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": shape.context,
        "rope_theta": 50000.0,
        **({"rope_scaling": _YARN | {_ORIGINAL: shape.context}} if shape.yarn else {}),
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": special["[BOS]"],
        "eos_token_id": special["<|im_end|>"],
        "pad_token_id": special["[PAD]"],
    }


def _make_vision_config(
    text: dict[str, Any], special: dict[str, int], tower: Tower
) -> dict[str, Any]:
    """Return the config of a model for images, whose text model has the config `text`."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {
            "patch_size": PATCH_PIXELS,
            "init_pos_emb_height": tower.side,
            "init_pos_emb_width": tower.side,
            "init_pos_emb_time": FRAMES,
            "pos_emb_type": "divided_fixed",
            "num_attention_heads": tower.heads,
            "num_hidden_layers": tower.layers,
            "hidden_size": tower.hidden,
            "intermediate_size": tower.width,
            "merge_kernel_size": [MERGED_PATCHES, MERGED_PATCHES],
            "merge_type": "sd2_tpool",
            "video_attn_type": "spatial_temporal",
            "mm_projector_type": "patchmerger",
            "mm_hidden_size": tower.hidden,
            "text_hidden_size": text["hidden_size"],
            "projector_hidden_act": "gelu",
            "projector_ln_eps": 1e-5,
        },
        # Images and pieces of videos are one kind of input.
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "media_placeholder_token_id": special["<|media_pad|>"],
        "ignore_index": -100,
        "tie_word_embeddings": False,
        **{name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }


def make_config_files(experts: Experts, shape: Shape) -> Iterator[tuple[str, bytes]]:
    """Give the name and content of each file that says what the weights are."""
    special = tokenizer.list_special_tokens()
    ends = [special["<|im_end|>"], special["[EOS]"]]
    generation = {
        "bos_token_id": special["[BOS]"],
        "eos_token_id": ends,
        "pad_token_id": special["[PAD]"],
        "do_sample": True,
        "temperature": 0.6,
    }
    config = _make_config(special, shape) | (_QUANTISED if experts in NATIVE else {})
    if shape.tower:
        config = _make_vision_config(config, special, shape.tower)
        processor = {**_PROCESSOR, "in_patch_limit": shape.tower.patches}
        yield "preprocessor_config.json", format_json({"media_proc_cfg": processor})
    elif experts in NATIVE:
        config |= _WITH_CODE
        yield _CODE_FILE, _CODE.encode()
    yield "config.json", format_json(config)
    yield "generation_config.json", format_json(generation)
