"""A tiny model of the Kimi K2 architecture with random weights, for the lab.

The real thing in small: MLA attention, one dense layer and two of routed and shared experts,
safetensors in shards. Standard library only, and the same bytes every time, so that its manifest
can be pinned and a flipped byte be found. It talks nonsense; it loads, serves and pages like Kimi.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.lab import tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HIDDEN = 256
_LAYERS = 3
_DENSE_LAYERS = 1
_DENSE_WIDTH = 512
_EXPERTS = 8
_EXPERT_WIDTH = 128
_HEADS = 4
_Q_RANK = 128
# vLLM's CPU kernel for MLA is compiled for these two alone.
_KV_RANK = 512
_ROPE = 64
_NOPE = 128
_VALUE = 128
_SHARD_BYTES = 3 << 20
# Kimi's native INT4: 32 weights share a scale; weights of about 1/16, like those of bfloat16.
_GROUP = 32
_SCALE_STEP = 2.0**-10

Experts = Literal["bf16", "int4", "dequantised"]

# As moonshotai/Kimi-K2-Thinking has it: the routed experts alone are quantised.
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
                    "group_size": _GROUP,
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

# The upper byte of a bfloat16 (sign and seven bits of exponent) sets its size in steps of four.
_UNIT = 0x3F  # below 2: tables that are looked up
_LOGITS = 0x3E  # below 1/2: logits with a spread of about 4, so that some answers stand out
_PROJECTION = (
    0x3D  # below 1/8: about 1/sqrt(256), keeps a projection's output the size of its input
)

# The first channel of the hidden state is a constant, and what the last layer makes of it a bias.
_CONSTANT = 4.0
_THOUGHT_ENDS = 8.0
_ONLY_WHERE_ASKED = -4.0
_NEVER = -8.0


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes


def make(dest: Path, experts: Experts = "bf16") -> Path:
    """Write the model and its `kimi-manifest.json` into `dest` (made where missing); 0644 each.

    `experts`: how the routed experts are written. `int4` is Kimi's native format
    (compressed-tensors, groups of 32), `dequantised` the very same values as bfloat16.
    """
    dest.mkdir(parents=True, exist_ok=True)
    files = _files(experts)
    rows = [
        {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(files.items())
    ]
    files["kimi-manifest.json"] = _json({"schema": "kimi-prov/manifest/v1", "files": rows})
    for name, data in files.items():
        path = dest / name
        path.write_bytes(data)
        path.chmod(0o644)
    return dest


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _files(experts: Experts) -> dict[str, bytes]:
    special = tokenizer.special_tokens()
    ends = [special["<|im_end|>"], special["[EOS]"]]
    generation = {
        "bos_token_id": special["[BOS]"],
        "eos_token_id": ends,
        "pad_token_id": special["[PAD]"],
        "do_sample": True,
        "temperature": 0.6,
    }
    quantised = _QUANTISED if experts == "int4" else {}
    return {
        "config.json": _json(_config(special) | quantised),
        "generation_config.json": _json(generation),
        **tokenizer.files(),
        **_weights(experts),
    }


def _config(special: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": tokenizer.VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": _DENSE_WIDTH,
        "moe_intermediate_size": _EXPERT_WIDTH,
        "num_hidden_layers": _LAYERS,
        "first_k_dense_replace": _DENSE_LAYERS,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "q_lora_rank": _Q_RANK,
        "kv_lora_rank": _KV_RANK,
        "qk_rope_head_dim": _ROPE,
        "qk_nope_head_dim": _NOPE,
        "v_head_dim": _VALUE,
        "n_routed_experts": _EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
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
        "max_position_embeddings": 4096,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": special["[BOS]"],
        "eos_token_id": special["<|im_end|>"],
        "pad_token_id": special["[PAD]"],
    }


def _random(name: str, shape: tuple[int, ...], upper: int = _PROJECTION) -> _Tensor:
    """Bfloat16 values spread evenly around zero, drawn from the tensor's own name.

    Three of four have the exponent `upper` asks for, the others a step of four less.
    """
    count = math.prod(shape)
    drawn = hashlib.shake_256(name.encode()).digest(2 * count)
    sizes = bytes(
        (upper if byte & 3 else upper - 1) | (byte & 0x80)  # the sign from the top bit
        for byte in range(256)
    )
    data = bytearray(2 * count)
    data[0::2] = drawn[:count]
    data[1::2] = drawn[count:].translate(sizes)
    return _Tensor(name, shape, "BF16", bytes(data))


def _ones(name: str, size: int) -> _Tensor:
    return _Tensor(name, (size,), "BF16", b"\x80\x3f" * size)


def _with_column(tensor: _Tensor, values: list[float]) -> _Tensor:
    """Replace the first column of a matrix, one value for each row."""
    data = bytearray(tensor.data)
    stride = 2 * tensor.shape[1]
    upper_halves = [struct.pack("<f", value)[2:] for value in values]
    data[0::stride] = bytes(half[0] for half in upper_halves)
    data[1::stride] = bytes(half[1] for half in upper_halves)
    return replace(tensor, data=bytes(data))


def _without_first_row(tensor: _Tensor) -> _Tensor:
    row = 2 * tensor.shape[1]
    return replace(tensor, data=bytes(row) + tensor.data[row:])


def _embedding() -> _Tensor:
    """Put a constant into the first channel; no layer writes there, so it reaches the end."""
    table = _random("model.embed_tokens.weight", (tokenizer.VOCAB_SIZE, _HIDDEN), _UNIT)
    return _with_column(table, [_CONSTANT] * tokenizer.VOCAB_SIZE)


def _lm_head() -> _Tensor:
    """Random rows; the constant channel gives each token a bias, so that an answer has a shape.

    The thought ends after some tens of tokens; no other special token comes by itself. Where a
    grammar allows digits or blanks to go on for ever, the mark that ends them is the likelier.
    """
    head = _random("lm_head.weight", (tokenizer.VOCAB_SIZE, _HIDDEN), _LOGITS)
    data, row = bytearray(head.data), 2 * _HIDDEN
    for token in tokenizer.endless():
        data[row * token : row * (token + 1)] = bytes(row)
    head = replace(head, data=bytes(data))
    return _with_column(head, [_bias(token) for token in range(tokenizer.VOCAB_SIZE)])


def _bias(token: int) -> float:
    if token == tokenizer.special_tokens()["</think>"]:
        return _THOUGHT_ENDS
    if token in tokenizer.tool_marks():
        return _ONLY_WHERE_ASKED
    return _NEVER if token in tokenizer.endless() else 0.0


def _tensors(experts: Experts) -> Iterator[_Tensor]:
    yield _embedding()
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        yield _ones(f"{prefix}.input_layernorm.weight", _HIDDEN)
        yield from _attention(f"{prefix}.self_attn")
        yield _ones(f"{prefix}.post_attention_layernorm.weight", _HIDDEN)
        if layer < _DENSE_LAYERS:
            yield from _mlp(f"{prefix}.mlp", _DENSE_WIDTH)
        else:
            yield from _experts(f"{prefix}.mlp", experts)
    yield _ones("model.norm.weight", _HIDDEN)
    yield _lm_head()


def _attention(prefix: str) -> Iterator[_Tensor]:
    yield _random(f"{prefix}.q_a_proj.weight", (_Q_RANK, _HIDDEN))
    yield _ones(f"{prefix}.q_a_layernorm.weight", _Q_RANK)
    yield _random(f"{prefix}.q_b_proj.weight", (_HEADS * (_NOPE + _ROPE), _Q_RANK))
    yield _random(f"{prefix}.kv_a_proj_with_mqa.weight", (_KV_RANK + _ROPE, _HIDDEN))
    yield _ones(f"{prefix}.kv_a_layernorm.weight", _KV_RANK)
    yield _random(f"{prefix}.kv_b_proj.weight", (_HEADS * (_NOPE + _VALUE), _KV_RANK))
    yield _without_first_row(_random(f"{prefix}.o_proj.weight", (_HIDDEN, _HEADS * _VALUE)))


def _mlp(prefix: str, width: int) -> Iterator[_Tensor]:
    yield _random(f"{prefix}.gate_proj.weight", (width, _HIDDEN))
    yield _random(f"{prefix}.up_proj.weight", (width, _HIDDEN))
    yield _without_first_row(_random(f"{prefix}.down_proj.weight", (_HIDDEN, width)))


def _experts(prefix: str, written: Experts) -> Iterator[_Tensor]:
    yield _random(f"{prefix}.gate.weight", (_EXPERTS, _HIDDEN))
    yield _Tensor(f"{prefix}.gate.e_score_correction_bias", (_EXPERTS,), "F32", bytes(4 * _EXPERTS))
    for expert in range(_EXPERTS):
        name = f"{prefix}.experts.{expert}"
        if written == "bf16":
            yield from _mlp(name, _EXPERT_WIDTH)
        else:
            yield from _int4_expert(name, written)
    yield from _mlp(f"{prefix}.shared_experts", _EXPERT_WIDTH)


def _int4_expert(prefix: str, written: Experts) -> Iterator[_Tensor]:
    yield from _int4(f"{prefix}.gate_proj", (_EXPERT_WIDTH, _HIDDEN), written)
    yield from _int4(f"{prefix}.up_proj", (_EXPERT_WIDTH, _HIDDEN), written)
    yield from _int4(f"{prefix}.down_proj", (_HIDDEN, _EXPERT_WIDTH), written)


def _int4(prefix: str, shape: tuple[int, int], written: Experts) -> Iterator[_Tensor]:
    """Give a matrix of 4-bit weights in groups of 32, or its values as bfloat16.

    A scale has three bits after the point, so that its product with a weight is a bfloat16 to the
    last bit: both forms of a matrix hold the same numbers.
    """
    rows, columns = shape
    drawn = hashlib.shake_256(prefix.encode()).digest(rows * columns // 2)
    if prefix.endswith("down_proj"):
        # The channel that holds the constant: weight 8 of 0 to 15 stands for zero.
        drawn = b"\x88" * (columns // 2) + drawn[columns // 2 :]
    groups = rows * columns // _GROUP
    sizes = hashlib.shake_256(f"{prefix}.scale".encode()).digest(groups)
    scales = [(8 + (size & 7)) * _SCALE_STEP for size in sizes]
    if written == "int4":
        halves = b"".join(struct.pack("<f", scale)[2:] for scale in scales)
        packed = (rows, columns // 8)
        yield _Tensor(f"{prefix}.weight_packed", packed, "I32", drawn)
        yield _Tensor(f"{prefix}.weight_scale", (rows, columns // _GROUP), "BF16", halves)
        yield _Tensor(f"{prefix}.weight_shape", (2,), "I32", struct.pack("<2i", rows, columns))
        return
    values = bytearray()
    for group, scale in enumerate(scales):
        table = [struct.pack("<f", (weight - 8) * scale)[2:] for weight in range(16)]
        for byte in drawn[group * _GROUP // 2 : (group + 1) * _GROUP // 2]:
            values += table[byte & 15] + table[byte >> 4]
    yield _Tensor(f"{prefix}.weight", shape, "BF16", bytes(values))


def _weights(experts: Experts) -> dict[str, bytes]:
    """Make the shards and their index."""
    shards: list[list[_Tensor]] = [[]]
    for tensor in _tensors(experts):
        if shards[-1] and _size([*shards[-1], tensor]) > _SHARD_BYTES:
            shards.append([])
        shards[-1].append(tensor)
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    index = {
        "metadata": {"total_size": sum(_size(shard) for shard in shards)},
        "weight_map": {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    files = {name: _safetensors(shard) for name, shard in zip(names, shards, strict=True)}
    return {**files, "model.safetensors.index.json": _json(index)}


def _size(tensors: list[_Tensor]) -> int:
    return sum(len(tensor.data) for tensor in tensors)


def _safetensors(tensors: list[_Tensor]) -> bytes:
    """One file of the format: the header's length, the header as JSON, then the bytes in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + len(tensor.data)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensor.data for tensor in tensors)
