"""Models of the Kimi K2 architecture with random weights, for the lab.

The tiny one is the real thing in small: MLA attention, one dense layer and two of routed and shared
experts, safetensors in shards. The cut one has Kimi K2's own layers, but few of them, and fills a
GPU; with a vision tower before it, it is Kimi K2.5 cut. Standard library only, and the same bytes
every time, so that a manifest can be pinned and a flipped byte be found. They talk nonsense; they
load, serve and page like Kimi.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.lab import tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# vLLM's CPU kernel for MLA is compiled for these two alone.
_KV_RANK = 512
_ROPE = 64
_NOPE = 128
_VALUE = 128
_DENSE_LAYERS = 1
# Kimi's native INT4: 32 weights share a scale; weights of about 1/16, like those of bfloat16.
_GROUP = 32

Experts = Literal["bf16", "int4", "dequantised", "hollow"]
# Both are written in Kimi's native format.
_NATIVE = ("int4", "hollow")

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
# vLLM knows Kimi K2's configuration. KTransformers takes it from code beside the weights, which the
# real repository has too.
_CODE_FILE = "configuration_deepseek.py"
_CODE = """\
from transformers import DeepseekV3Config

__all__ = ["DeepseekV3Config"]
"""
_WITH_CODE = {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}

# The upper byte of a bfloat16 (sign and seven bits of exponent) sets its size in steps of four.
_UNIT = 0x3F  # below 2: tables that are looked up


@dataclass(frozen=True)
class Tower:
    """What a vision tower measures. `side`: patches of an image's edge that have a position.

    `patches`: the most that the processor leaves of an image.
    """

    layers: int
    hidden: int
    width: int
    heads: int
    side: int = 64
    patches: int = 16384


@dataclass(frozen=True)
class Shape:
    """What a model measures. `logits`, `projection`: the upper byte of such weights.

    Logits spread by 4 to 6, so that some answers stand out; a projection's output keeps about the
    size of its input: weights of about 1/sqrt(hidden). `bias`: how much more those of marks weigh,
    since what the layers add makes the constant channel the smaller, and logits spread wider.
    `scale_step`: that of an INT4 group's scale. `vocab`: rows of the tables; those beyond the
    tokenizer's are never answered. `context`: tokens. `yarn`: positions
    go through the code that Kimi's do, stretched by nothing.
    """

    hidden: int
    layers: int
    dense_width: int
    experts: int
    experts_per_token: int
    expert_width: int
    heads: int
    q_rank: int
    shard_bytes: int
    logits: int
    bias: float
    projection: int
    scale_step: float
    vocab: int = tokenizer.VOCAB_SIZE
    context: int = 4096
    tower: Tower | None = None
    yarn: bool = False


TINY = Shape(
    hidden=256,
    layers=3,
    dense_width=512,
    experts=8,
    experts_per_token=2,
    expert_width=128,
    heads=4,
    q_rank=128,
    shard_bytes=3 << 20,
    logits=0x3E,  # below 1/2
    bias=1.0,
    projection=0x3D,  # below 1/8
    scale_step=2.0**-10,
)
# The tiny one behind a vision tower as small. An image is of 256 tokens at most, so that an engine
# needs no more context for it; an answer may have 4096 beside its prompt.
SEEING = replace(
    TINY,
    layers=2,
    heads=2,
    context=5120,
    tower=Tower(layers=2, hidden=64, width=128, heads=2, patches=1024),
    # Without it vLLM's CPU build (0.32.0) turns the queries of latent attention wrongly: its kernel
    # takes them to lie one after the other.
    yarn=True,
)
# The tiny one in sizes that two, three and six ranks share evenly; vLLM pads a vocabulary to 64.
THIRDS = replace(TINY, dense_width=768, expert_width=192, heads=6, vocab=33 * 64)
# Kimi K2's layers, one dense and one of experts, with the lab's own tokenizer.
CUT = Shape(
    hidden=7168,
    layers=2,
    dense_width=18432,
    experts=384,
    experts_per_token=8,
    expert_width=2048,
    heads=64,
    q_rank=1536,
    shard_bytes=1 << 30,
    logits=0x3D,
    bias=1.4,
    projection=0x3C,
    scale_step=2.0**-12,
)
# The same layers behind two of the 27 of Kimi K2.5's vision tower, and its projector. The largest
# image that its processor leaves is of 4225 tokens, by which an engine measures its memory.
CUT_SEEING = replace(CUT, context=16384, tower=Tower(layers=2, hidden=1152, width=4304, heads=16))
# Larger tensors are cut out of one pool of drawn bytes, each from a place of its own.
_DRAWN_BYTES = 4 << 20
_POOL_BYTES = 64 << 20

# As moonshotai/Kimi-K2.5 has it: patches of 14 x 14 pixels, 2 x 2 of them a token.
_PATCH = 14
_MERGED = 2
_FRAMES = 4
_PROCESSOR: dict[str, Any] = {
    "patch_size": _PATCH,
    "merge_kernel_size": _MERGED,
    "temporal_merge_kernel_size": _FRAMES,
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
_TEXT = "language_model."
_ORIGINAL = "original_max_position_embeddings"
# As Kimi K2 has it, but for the factor, 64 in Kimi K2.5.
_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

# The first channel of the hidden state is a constant, and what the last layer makes of it a bias.
_CONSTANT = 4.0
_THOUGHT_ENDS = 8.0
_ONLY_WHERE_ASKED = -4.0
_NEVER = -8.0


# What follows another part in a file: bytes, or how many zeros that the disk need not hold.
_Part = bytes | memoryview | int


@dataclass(frozen=True)
class _Tensor:
    """A tensor's row and bytes. `hole`: in place of bytes, how many zeros are left out."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes | memoryview
    hole: int = 0

    @property
    def size(self) -> int:
        return self.hole or len(self.data)


def make_model(
    dest: Path,
    experts: Experts = "bf16",
    shape: Shape = TINY,
    values: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the model and its `kimi-manifest.json` into `dest` (made where missing); 0644 each.

    `experts`: how the routed experts are written. `int4` is Kimi's native format
    (compressed-tensors, groups of 32), `dequantised` the very same values as bfloat16. `hollow` is
    the native format with every expert zero, left out of the file: 61 of Kimi K2's layers are read
    as 595 GB and take 24 of the disk, and 25 of memory while they are made. A manifest, which would
    be a hash of all that, is not written with it.
    `values`: what tensors hold in place of random values, by name, as the file has them.
    Raises ValueError for values of a name that is not there, or of another size.
    """
    dest.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, parts in _make_files(experts, shape, values or {}):
        _write_file(dest / name, parts)
        if experts != "hollow":
            size, digest = (dest / name).stat().st_size, hashlib.sha256()
            for part in parts:
                # No part is a hole there.
                digest.update(bytes(part))
            rows.append({"path": name, "size": size, "sha256": digest.hexdigest()})
    if rows:
        rows.sort(key=lambda row: str(row["path"]))
        manifest = _format_json({"schema": "kimi-prov/manifest/v1", "files": rows})
        _write_file(dest / "kimi-manifest.json", [manifest])
    return dest


def _write_file(path: Path, parts: Iterable[_Part]) -> None:
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, int):
                file.seek(part, os.SEEK_CUR)
            else:
                file.write(part)
        file.truncate()
    path.chmod(0o644)


def _format_json(document: object) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _make_files(
    experts: Experts, shape: Shape, values: Mapping[str, bytes]
) -> Iterator[tuple[str, list[_Part]]]:
    """Give each file's name and the parts of its content, one shard of the weights at a time."""
    special = tokenizer.list_special_tokens()
    ends = [special["<|im_end|>"], special["[EOS]"]]
    generation = {
        "bos_token_id": special["[BOS]"],
        "eos_token_id": ends,
        "pad_token_id": special["[PAD]"],
        "do_sample": True,
        "temperature": 0.6,
    }
    config = _make_config(special, shape) | (_QUANTISED if experts in _NATIVE else {})
    if shape.tower:
        config = _make_vision_config(config, special, shape.tower)
        processor = {**_PROCESSOR, "in_patch_limit": shape.tower.patches}
        yield "preprocessor_config.json", [_format_json({"media_proc_cfg": processor})]
    elif experts in _NATIVE:
        config |= _WITH_CODE
        yield _CODE_FILE, [_CODE.encode()]
    yield "config.json", [_format_json(config)]
    yield "generation_config.json", [_format_json(generation)]
    for name, data in tokenizer.make_files().items():
        yield name, [data]
    yield from _make_shards(experts, shape, values)


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
        "first_k_dense_replace": _DENSE_LAYERS,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "q_lora_rank": shape.q_rank,
        "kv_lora_rank": _KV_RANK,
        "qk_rope_head_dim": _ROPE,
        "qk_nope_head_dim": _NOPE,
        "v_head_dim": _VALUE,
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
    """Give the config of a model of images, whose text model has the config `text`."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {
            "patch_size": _PATCH,
            "init_pos_emb_height": tower.side,
            "init_pos_emb_width": tower.side,
            "init_pos_emb_time": _FRAMES,
            "pos_emb_type": "divided_fixed",
            "num_attention_heads": tower.heads,
            "num_hidden_layers": tower.layers,
            "hidden_size": tower.hidden,
            "intermediate_size": tower.width,
            "merge_kernel_size": [_MERGED, _MERGED],
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


def _make_random(name: str, shape: tuple[int, ...], upper: int) -> _Tensor:
    """Bfloat16 values spread evenly around zero, drawn from the tensor's own name.

    Three of four have the exponent `upper` asks for, the others a step of four less.
    """
    return _Tensor(name, shape, "BF16", _draw_rows(name, shape, upper, shape[0]))


def _draw_rows(
    name: str, shape: tuple[int, ...], upper: int, first_rows: int
) -> bytes | memoryview:
    """Give of such a tensor the first rows."""
    count = math.prod(shape)
    size = 2 * count // shape[0] * first_rows
    if 2 * count > _DRAWN_BYTES:
        return _cut_from_pool(_make_pool(upper), name, 2 * count, size)
    return _draw_values(name, count, upper)[:size]


def _draw_values(name: str, count: int, upper: int) -> bytes:
    drawn = hashlib.shake_256(name.encode()).digest(2 * count)
    sizes = bytes(
        (upper if byte & 3 else upper - 1) | (byte & 0x80)  # the sign from the top bit
        for byte in range(256)
    )
    data = bytearray(2 * count)
    data[0::2] = drawn[:count]
    data[1::2] = drawn[count:].translate(sizes)
    return bytes(data)


@functools.cache
def _make_pool(upper: int | None) -> bytes:
    """Bytes to cut large tensors out of: bfloat16 values by `upper`, or plain ones."""
    if upper is None:
        return hashlib.shake_256(b"pool").digest(_POOL_BYTES)
    return _draw_values("pool", _POOL_BYTES // 2, upper)


def _cut_from_pool(pool: bytes, name: str, size: int, length: int | None = None) -> memoryview:
    """Cut `size` bytes out of the pool, at an even place that the name tells; the first `length`.

    A pool that is too small for them is gone through again and again.
    """
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") & ~1
    length = size if length is None else length
    if size > len(pool) // 2:
        offset %= len(pool)
        turned = pool[offset:] + pool[:offset]
        return memoryview(turned * math.ceil(length / len(pool)))[:length]
    offset %= len(pool) - size
    return memoryview(pool)[offset & ~1 : (offset & ~1) + length]


def _make_ones(name: str, size: int) -> _Tensor:
    return _Tensor(name, (size,), "BF16", b"\x80\x3f" * size)


def _set_column(matrix: bytearray, row: int, values: list[float]) -> None:
    """Replace the first column of a matrix, whose rows are of `row` bytes, by as many values."""
    upper_halves = [struct.pack("<f", value)[2:] for value in values]
    matrix[0::row] = bytes(half[0] for half in upper_halves)
    matrix[1::row] = bytes(half[1] for half in upper_halves)


def _clear_first_row(tensor: _Tensor) -> _Tensor:
    row = 2 * tensor.shape[1]
    return replace(tensor, data=b"".join((bytes(row), memoryview(tensor.data)[row:])))


def _make_embedding(shape: Shape) -> _Tensor:
    """Put a constant into the first channel; no layer writes there, so it reaches the end."""
    table = _make_random("model.embed_tokens.weight", (shape.vocab, shape.hidden), _UNIT)
    data = bytearray(table.data)
    _set_column(data, 2 * shape.hidden, [_CONSTANT] * shape.vocab)
    return replace(table, data=memoryview(data))


def _make_lm_head(shape: Shape) -> _Tensor:
    """Random rows; the constant channel gives each token a bias, so that an answer has a shape.

    The thought ends after some tens of tokens; no other special token comes by itself. Where a
    grammar allows digits, blanks or a list to go on for ever, what ends them is the likelier.
    """
    name, size, row = "lm_head.weight", (shape.vocab, shape.hidden), 2 * shape.hidden
    words = tokenizer.VOCAB_SIZE
    data = bytearray(row * shape.vocab)
    data[: row * words] = _draw_rows(name, size, shape.logits, words)
    for token in tokenizer.list_endless() | tokenizer.list_separators() | tokenizer.list_closers():
        data[row * token : row * (token + 1)] = bytes(row)
    biases = [*map(_compute_bias, range(words)), *[_NEVER] * (shape.vocab - words)]
    _set_column(data, row, [shape.bias * value for value in biases])
    return _Tensor(name, size, "BF16", memoryview(data))


def _compute_bias(token: int) -> float:
    if token == tokenizer.list_special_tokens()["</think>"]:
        return _THOUGHT_ENDS
    if token in tokenizer.list_tool_marks() | tokenizer.list_separators():
        return _ONLY_WHERE_ASKED
    return _NEVER if token in tokenizer.list_endless() else 0.0


def _make_tensors(experts: Experts, shape: Shape) -> Iterator[_Tensor]:
    if shape.tower is None:
        yield from _make_text_tensors(experts, shape)
        return
    yield from _make_tower(shape.tower, shape.projection)
    yield from _make_projector(shape.tower, shape)
    for tensor in _make_text_tensors(experts, shape):
        yield replace(tensor, name=_TEXT + tensor.name)


def _make_text_tensors(experts: Experts, shape: Shape) -> Iterator[_Tensor]:
    yield _make_embedding(shape)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield _make_ones(f"{prefix}.input_layernorm.weight", shape.hidden)
        yield from _make_attention(f"{prefix}.self_attn", shape)
        yield _make_ones(f"{prefix}.post_attention_layernorm.weight", shape.hidden)
        if layer < _DENSE_LAYERS:
            yield from _make_mlp(f"{prefix}.mlp", shape.dense_width, shape)
        else:
            yield from _make_experts(f"{prefix}.mlp", experts, shape)
    yield _make_ones("model.norm.weight", shape.hidden)
    yield _make_lm_head(shape)


def _make_attention(prefix: str, shape: Shape) -> Iterator[_Tensor]:
    def drawn(name: str, *size: int) -> _Tensor:
        return _make_random(f"{prefix}.{name}.weight", size, shape.projection)

    hidden, heads, rank = shape.hidden, shape.heads, shape.q_rank
    yield drawn("q_a_proj", rank, hidden)
    yield _make_ones(f"{prefix}.q_a_layernorm.weight", rank)
    yield drawn("q_b_proj", heads * (_NOPE + _ROPE), rank)
    yield drawn("kv_a_proj_with_mqa", _KV_RANK + _ROPE, hidden)
    yield _make_ones(f"{prefix}.kv_a_layernorm.weight", _KV_RANK)
    yield drawn("kv_b_proj", heads * (_NOPE + _VALUE), _KV_RANK)
    yield _clear_first_row(drawn("o_proj", hidden, heads * _VALUE))


def _make_tower(tower: Tower, upper: int) -> Iterator[_Tensor]:
    hidden = tower.hidden
    prefix = "vision_tower.patch_embed"
    yield from _make_linear(f"{prefix}.proj", (hidden, 3, _PATCH, _PATCH), upper + 1)
    yield _make_random(f"{prefix}.pos_emb.weight", (tower.side, tower.side, hidden), upper + 1)
    for layer in range(tower.layers):
        prefix = f"vision_tower.encoder.blocks.{layer}"
        yield from _make_norm(f"{prefix}.norm0", hidden)
        yield from _make_linear(f"{prefix}.wqkv", (3 * hidden, hidden), upper)
        yield from _make_linear(f"{prefix}.wo", (hidden, hidden), upper)
        yield from _make_norm(f"{prefix}.norm1", hidden)
        yield from _make_linear(f"{prefix}.mlp.fc0", (tower.width, hidden), upper)
        yield from _make_linear(f"{prefix}.mlp.fc1", (hidden, tower.width), upper)
    yield from _make_norm("vision_tower.encoder.final_layernorm", hidden)


def _make_projector(tower: Tower, shape: Shape) -> Iterator[_Tensor]:
    """Bring the tower's width to the text model's; the first channel is the constant there too."""
    merged = _MERGED * _MERGED * tower.hidden
    yield from _make_norm("mm_projector.pre_norm", tower.hidden)
    yield from _make_linear("mm_projector.proj.0", (merged, merged), shape.projection)
    weight, bias = _make_linear("mm_projector.proj.2", (shape.hidden, merged), shape.projection)
    yield _clear_first_row(weight)
    constant = struct.pack("<f", _CONSTANT)[2:]
    yield replace(bias, data=b"".join((constant, memoryview(bias.data)[2:])))


def _make_linear(name: str, shape: tuple[int, ...], upper: int) -> tuple[_Tensor, _Tensor]:
    """Give weights and biases."""
    weight = _make_random(f"{name}.weight", shape, upper)
    return weight, _make_random(f"{name}.bias", shape[:1], upper)


def _make_norm(name: str, size: int) -> tuple[_Tensor, _Tensor]:
    """Give what keeps a normalised state as it is."""
    return _make_ones(f"{name}.weight", size), _Tensor(
        f"{name}.bias", (size,), "BF16", bytes(2 * size)
    )


def _make_mlp(prefix: str, width: int, shape: Shape) -> Iterator[_Tensor]:
    hidden, upper = shape.hidden, shape.projection
    yield _make_random(f"{prefix}.gate_proj.weight", (width, hidden), upper)
    yield _make_random(f"{prefix}.up_proj.weight", (width, hidden), upper)
    yield _clear_first_row(_make_random(f"{prefix}.down_proj.weight", (hidden, width), upper))


def _make_experts(prefix: str, written: Experts, shape: Shape) -> Iterator[_Tensor]:
    count = shape.experts
    yield _make_random(f"{prefix}.gate.weight", (count, shape.hidden), shape.projection)
    yield _Tensor(f"{prefix}.gate.e_score_correction_bias", (count,), "F32", bytes(4 * count))
    for expert in range(count):
        name = f"{prefix}.experts.{expert}"
        if written == "bf16":
            yield from _make_mlp(name, shape.expert_width, shape)
        else:
            yield from _make_int4_expert(name, written, shape)
    yield from _make_mlp(f"{prefix}.shared_experts", shape.expert_width, shape)


def _make_int4_expert(prefix: str, written: Experts, shape: Shape) -> Iterator[_Tensor]:
    across, down = (shape.expert_width, shape.hidden), (shape.hidden, shape.expert_width)
    yield from _make_int4(f"{prefix}.gate_proj", across, written, shape.scale_step)
    yield from _make_int4(f"{prefix}.up_proj", across, written, shape.scale_step)
    yield from _make_int4(f"{prefix}.down_proj", down, written, shape.scale_step)


def _make_plain_values(name: str, size: int) -> bytes | memoryview:
    if size > _DRAWN_BYTES:
        return _cut_from_pool(_make_pool(None), name, size)
    return hashlib.shake_256(name.encode()).digest(size)


def _make_int4(
    prefix: str, shape: tuple[int, int], written: Experts, step: float
) -> Iterator[_Tensor]:
    """Give a matrix of 4-bit weights in groups of 32, or its values as bfloat16.

    A scale has three bits after the point, so that its product with a weight is a bfloat16 to the
    last bit: both forms of a matrix hold the same numbers.
    """
    rows, columns = shape
    if written == "hollow":
        yield from _pack_matrix(prefix, shape, None)
        return
    drawn = _make_plain_values(prefix, rows * columns // 2)
    if prefix.endswith("down_proj"):
        # The channel that holds the constant: weight 8 of 0 to 15 stands for zero.
        drawn = b"".join((b"\x88" * (columns // 2), memoryview(drawn)[columns // 2 :]))
    groups = rows * columns // _GROUP
    sizes = hashlib.shake_256(f"{prefix}.scale".encode()).digest(groups)
    tops = [struct.pack("<f", (8 + top) * step)[2:] for top in range(8)]
    if written == "int4":
        halves = bytearray(2 * groups)
        halves[0::2] = sizes.translate(bytes(tops[size & 7][0] for size in range(256)))
        halves[1::2] = sizes.translate(bytes(tops[size & 7][1] for size in range(256)))
        yield from _pack_matrix(prefix, shape, (drawn, bytes(halves)))
        return
    values = bytearray()
    for group, size in enumerate(sizes):
        scale = (8 + (size & 7)) * step
        table = [struct.pack("<f", (weight - 8) * scale)[2:] for weight in range(16)]
        for byte in drawn[group * _GROUP // 2 : (group + 1) * _GROUP // 2]:
            values += table[byte & 15] + table[byte >> 4]
    yield _Tensor(f"{prefix}.weight", shape, "BF16", bytes(values))


def _pack_matrix(
    prefix: str, shape: tuple[int, int], filled: tuple[bytes | memoryview, bytes] | None
) -> Iterator[_Tensor]:
    """Give the three tensors of a matrix. `filled`: weights and scales; None leaves them out."""
    rows, columns = shape
    weights, scales = filled or (b"", b"")
    groups = rows * columns // _GROUP
    left_out = (0, 0) if filled else (groups * _GROUP // 2, groups * 2)
    packed, scaled = (rows, columns // 8), (rows, columns // _GROUP)
    yield _Tensor(f"{prefix}.weight_packed", packed, "I32", weights, left_out[0])
    yield _Tensor(f"{prefix}.weight_scale", scaled, "BF16", scales, left_out[1])
    yield _Tensor(f"{prefix}.weight_shape", (2,), "I32", struct.pack("<2i", rows, columns))


def _replace_values(tensors: Iterable[_Tensor], values: Mapping[str, bytes]) -> Iterator[_Tensor]:
    """Put the values that are given in place of those of the tensors."""
    left = dict(values)
    for tensor in tensors:
        if tensor.name not in left:
            yield tensor
            continue
        data = left.pop(tensor.name)
        if len(data) != tensor.size:
            raise ValueError(f"{tensor.name}: {tensor.size} bytes expected, not {len(data)}")
        yield replace(tensor, data=data, hole=0)
    if left:
        raise ValueError(f"the model has no tensor {', '.join(sorted(left))}")


def _make_shards(
    experts: Experts, shape: Shape, values: Mapping[str, bytes]
) -> Iterator[tuple[str, list[_Part]]]:
    """Give the shards and their index."""
    shards: list[list[_Tensor]] = [[]]
    size = 0
    for tensor in _replace_values(_make_tensors(experts, shape), values):
        if shards[-1] and size + tensor.size > shape.shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    index = {
        "metadata": {"total_size": sum(_sum_sizes(shard) for shard in shards)},
        "weight_map": {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    for name, shard in zip(names, shards, strict=True):
        yield name, _make_safetensors(shard)
    yield "model.safetensors.index.json", [_format_json(index)]


def _sum_sizes(tensors: list[_Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _make_safetensors(tensors: list[_Tensor]) -> list[_Part]:
    """One file of the format: the header's length, the header as JSON, then the bytes in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return [len(text).to_bytes(8, "little") + text, *(t.hole or t.data for t in tensors)]
