"""The tensors of the lab's models: random weights, the same bytes every time."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.lab import tokenizer
from kimi_prov.lab.model_shapes import (
    DENSE_LAYERS,
    GROUP_SIZE,
    KV_RANK,
    MERGED_PATCHES,
    NOPE_WIDTH,
    PATCH_PIXELS,
    ROPE_WIDTH,
    VALUE_WIDTH,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.lab.model_shapes import Experts, Shape, Tower

# The upper byte of a bfloat16 (sign and seven bits of exponent) sets its size in steps of four.
_UNIT = 0x3F  # below 2: tables that are looked up
# Larger tensors are cut out of one pool of random bytes, each at an offset of its own.
_DRAWN_BYTES = 4 << 20
_POOL_BYTES = 64 << 20
_TEXT = "language_model."

# The first channel of the hidden state is a constant; the last layer turns it into a bias.
_CONSTANT = 4.0
_THOUGHT_ENDS = 8.0
_ONLY_WHERE_ASKED = -4.0
_NEVER = -8.0


@dataclass(frozen=True)
class Tensor:
    """A tensor's row and bytes. `hole`: in place of bytes, the number of zeros left out."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes | memoryview
    hole: int = 0

    @property
    def size(self) -> int:
        """How many bytes it takes of its file."""
        return self.hole or len(self.data)


def _make_random(name: str, shape: tuple[int, ...], upper: int) -> Tensor:
    """Return bfloat16 values spread evenly around zero, drawn with the tensor's name as seed.

    Three of four have the exponent `upper` asks for, the others a step of four less.
    """
    return Tensor(name, shape, "BF16", _draw_rows(name, shape, upper, shape[0]))


def _draw_rows(
    name: str, shape: tuple[int, ...], upper: int, first_rows: int
) -> bytes | memoryview:
    """Return the first rows of such a tensor."""
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
    """Return bytes to cut large tensors out of: bfloat16 values by `upper`, or random bytes."""
    if upper is None:
        return hashlib.shake_256(b"pool").digest(_POOL_BYTES)
    return _draw_values("pool", _POOL_BYTES // 2, upper)


def _cut_from_pool(pool: bytes, name: str, size: int, length: int | None = None) -> memoryview:
    """Cut `size` bytes out of the pool, at an even place that the name tells; the first `length`.

    A pool that is too small is repeated.
    """
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") & ~1
    length = size if length is None else length
    if size > len(pool) // 2:
        offset %= len(pool)
        turned = pool[offset:] + pool[:offset]
        return memoryview(turned * math.ceil(length / len(pool)))[:length]
    offset %= len(pool) - size
    return memoryview(pool)[offset & ~1 : (offset & ~1) + length]


def _make_ones(name: str, size: int) -> Tensor:
    return Tensor(name, (size,), "BF16", b"\x80\x3f" * size)


def _set_column(matrix: bytearray, row: int, values: list[float]) -> None:
    """Replace the first column of a matrix, whose rows are of `row` bytes, by as many values."""
    upper_halves = [struct.pack("<f", value)[2:] for value in values]
    matrix[0::row] = bytes(half[0] for half in upper_halves)
    matrix[1::row] = bytes(half[1] for half in upper_halves)


def _clear_first_row(tensor: Tensor) -> Tensor:
    row = 2 * tensor.shape[1]
    return replace(tensor, data=b"".join((bytes(row), memoryview(tensor.data)[row:])))


def _make_embedding(shape: Shape) -> Tensor:
    """Put a constant into the first channel; no layer writes there, so it reaches the last one."""
    table = _make_random("model.embed_tokens.weight", (shape.vocab, shape.hidden), _UNIT)
    data = bytearray(table.data)
    _set_column(data, 2 * shape.hidden, [_CONSTANT] * shape.vocab)
    return replace(table, data=memoryview(data))


def _make_lm_head(shape: Shape) -> Tensor:
    """Random rows; the constant channel gives each token a bias, so that an answer has a shape.

    The thought ends after some tens of tokens; no other special token appears by itself. Where a
    grammar allows endless digits, blanks or lists, the tokens that end them are likelier.
    """
    name, size, row = "lm_head.weight", (shape.vocab, shape.hidden), 2 * shape.hidden
    words = tokenizer.VOCAB_SIZE
    data = bytearray(row * shape.vocab)
    data[: row * words] = _draw_rows(name, size, shape.logits, words)
    for token in tokenizer.list_endless() | tokenizer.list_separators() | tokenizer.list_closers():
        data[row * token : row * (token + 1)] = bytes(row)
    biases = [*map(_compute_bias, range(words)), *[_NEVER] * (shape.vocab - words)]
    _set_column(data, row, [shape.bias * value for value in biases])
    return Tensor(name, size, "BF16", memoryview(data))


def _compute_bias(token: int) -> float:
    if token == tokenizer.list_special_tokens()["</think>"]:
        return _THOUGHT_ENDS
    if token in tokenizer.list_tool_marks() | tokenizer.list_separators():
        return _ONLY_WHERE_ASKED
    return _NEVER if token in tokenizer.list_endless() else 0.0


def make_tensors(experts: Experts, shape: Shape) -> Iterator[Tensor]:
    """Give all tensors of a model, in the order of its files."""
    if shape.tower is None:
        yield from _make_text_tensors(experts, shape)
        return
    yield from _make_tower(shape.tower, shape.projection)
    yield from _make_projector(shape.tower, shape)
    for tensor in _make_text_tensors(experts, shape):
        yield replace(tensor, name=_TEXT + tensor.name)


def _make_text_tensors(experts: Experts, shape: Shape) -> Iterator[Tensor]:
    yield _make_embedding(shape)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield _make_ones(f"{prefix}.input_layernorm.weight", shape.hidden)
        yield from _make_attention(f"{prefix}.self_attn", shape)
        yield _make_ones(f"{prefix}.post_attention_layernorm.weight", shape.hidden)
        if layer < DENSE_LAYERS:
            yield from _make_mlp(f"{prefix}.mlp", shape.dense_width, shape)
        else:
            yield from _make_experts(f"{prefix}.mlp", experts, shape)
    yield _make_ones("model.norm.weight", shape.hidden)
    yield _make_lm_head(shape)


def _make_attention(prefix: str, shape: Shape) -> Iterator[Tensor]:
    def drawn(name: str, *size: int) -> Tensor:
        return _make_random(f"{prefix}.{name}.weight", size, shape.projection)

    hidden, heads, rank = shape.hidden, shape.heads, shape.q_rank
    yield drawn("q_a_proj", rank, hidden)
    yield _make_ones(f"{prefix}.q_a_layernorm.weight", rank)
    yield drawn("q_b_proj", heads * (NOPE_WIDTH + ROPE_WIDTH), rank)
    yield drawn("kv_a_proj_with_mqa", KV_RANK + ROPE_WIDTH, hidden)
    yield _make_ones(f"{prefix}.kv_a_layernorm.weight", KV_RANK)
    yield drawn("kv_b_proj", heads * (NOPE_WIDTH + VALUE_WIDTH), KV_RANK)
    yield _clear_first_row(drawn("o_proj", hidden, heads * VALUE_WIDTH))


def _make_tower(tower: Tower, upper: int) -> Iterator[Tensor]:
    hidden = tower.hidden
    prefix = "vision_tower.patch_embed"
    yield from _make_linear(f"{prefix}.proj", (hidden, 3, PATCH_PIXELS, PATCH_PIXELS), upper + 1)
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


def _make_projector(tower: Tower, shape: Shape) -> Iterator[Tensor]:
    """Project the tower's width to the text model's; the first channel is the constant too."""
    merged = MERGED_PATCHES * MERGED_PATCHES * tower.hidden
    yield from _make_norm("mm_projector.pre_norm", tower.hidden)
    yield from _make_linear("mm_projector.proj.0", (merged, merged), shape.projection)
    weight, bias = _make_linear("mm_projector.proj.2", (shape.hidden, merged), shape.projection)
    yield _clear_first_row(weight)
    constant = struct.pack("<f", _CONSTANT)[2:]
    yield replace(bias, data=b"".join((constant, memoryview(bias.data)[2:])))


def _make_linear(name: str, shape: tuple[int, ...], upper: int) -> tuple[Tensor, Tensor]:
    """Return weights and biases."""
    weight = _make_random(f"{name}.weight", shape, upper)
    return weight, _make_random(f"{name}.bias", shape[:1], upper)


def _make_norm(name: str, size: int) -> tuple[Tensor, Tensor]:
    """Return weights and biases with which a norm changes nothing."""
    return _make_ones(f"{name}.weight", size), Tensor(
        f"{name}.bias", (size,), "BF16", bytes(2 * size)
    )


def _make_mlp(prefix: str, width: int, shape: Shape) -> Iterator[Tensor]:
    hidden, upper = shape.hidden, shape.projection
    yield _make_random(f"{prefix}.gate_proj.weight", (width, hidden), upper)
    yield _make_random(f"{prefix}.up_proj.weight", (width, hidden), upper)
    yield _clear_first_row(_make_random(f"{prefix}.down_proj.weight", (hidden, width), upper))


def _make_experts(prefix: str, written: Experts, shape: Shape) -> Iterator[Tensor]:
    count = shape.experts
    yield _make_random(f"{prefix}.gate.weight", (count, shape.hidden), shape.projection)
    yield Tensor(f"{prefix}.gate.e_score_correction_bias", (count,), "F32", bytes(4 * count))
    for expert in range(count):
        name = f"{prefix}.experts.{expert}"
        if written == "bf16":
            yield from _make_mlp(name, shape.expert_width, shape)
        else:
            yield from _make_int4_expert(name, written, shape)
    yield from _make_mlp(f"{prefix}.shared_experts", shape.expert_width, shape)


def _make_int4_expert(prefix: str, written: Experts, shape: Shape) -> Iterator[Tensor]:
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
) -> Iterator[Tensor]:
    """Return a matrix of 4-bit weights in groups of 32, or its values as bfloat16.

    A scale has three bits after the point, so that its product with a weight is an exact
    bfloat16: both forms of a matrix hold the same numbers.
    """
    rows, columns = shape
    if written == "hollow":
        yield from _pack_matrix(prefix, shape, None)
        return
    drawn = _make_plain_values(prefix, rows * columns // 2)
    if prefix.endswith("down_proj"):
        # The channel that holds the constant: weight 8 of 0 to 15 means zero.
        drawn = b"".join((b"\x88" * (columns // 2), memoryview(drawn)[columns // 2 :]))
    groups = rows * columns // GROUP_SIZE
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
        for byte in drawn[group * GROUP_SIZE // 2 : (group + 1) * GROUP_SIZE // 2]:
            values += table[byte & 15] + table[byte >> 4]
    yield Tensor(f"{prefix}.weight", shape, "BF16", bytes(values))


def _pack_matrix(
    prefix: str, shape: tuple[int, int], filled: tuple[bytes | memoryview, bytes] | None
) -> Iterator[Tensor]:
    """Return the three tensors of a matrix. `filled`: weights and scales; None leaves them out."""
    rows, columns = shape
    weights, scales = filled or (b"", b"")
    groups = rows * columns // GROUP_SIZE
    left_out = (0, 0) if filled else (groups * GROUP_SIZE // 2, groups * 2)
    packed, scaled = (rows, columns // 8), (rows, columns // GROUP_SIZE)
    yield Tensor(f"{prefix}.weight_packed", packed, "I32", weights, left_out[0])
    yield Tensor(f"{prefix}.weight_scale", scaled, "BF16", scales, left_out[1])
    yield Tensor(f"{prefix}.weight_shape", (2,), "I32", struct.pack("<2i", rows, columns))
