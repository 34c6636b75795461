"""A GGUF of a lab model's shapes for llama.cpp: 4-bit experts, 8-bit dense weights, any values.

`gguf` is llama.cpp's own package, of the source that is measured. Speeds do not depend on values,
and none is zero or no number: a block has one scale and random digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.lab import model_shapes

if TYPE_CHECKING:
    from pathlib import Path

EPSILON, ROPE_BASE = 1e-5, 50000.0


def write_model(path: Path, shape: model_shapes.Shape, gguf: Any) -> None:
    """Write a model of DeepSeek's architecture, which is Kimi's."""
    writer = gguf.GGUFWriter(path, "deepseek2")
    _describe(writer, shape, gguf)
    tensors = Tensors(writer, gguf)
    rank, rope, nope = model_shapes.KV_RANK, model_shapes.ROPE_WIDTH, model_shapes.NOPE_WIDTH
    value, size, heads = model_shapes.VALUE_WIDTH, shape.hidden, shape.heads
    tensors.add_dense("token_embd", (shape.vocab, size))
    tensors.add_floats("output_norm", (size,))
    tensors.add_dense("output", (shape.vocab, size))
    for index in range(shape.layers):
        name = f"blk.{index}."
        for norm, count in (
            ("attn_norm", size),
            ("ffn_norm", size),
            ("attn_q_a_norm", shape.q_rank),
        ):
            tensors.add_floats(name + norm, (count,))
        tensors.add_floats(name + "attn_kv_a_norm", (rank,))
        tensors.add_dense(name + "attn_q_a", (shape.q_rank, size))
        tensors.add_dense(name + "attn_q_b", (heads * (nope + rope), shape.q_rank))
        tensors.add_dense(name + "attn_kv_a_mqa", (rank + rope, size))
        tensors.add_dense(name + "attn_k_b", (heads, rank, nope))
        tensors.add_dense(name + "attn_v_b", (heads, value, rank))
        tensors.add_dense(name + "attn_output", (size, heads * value))
        if index < model_shapes.DENSE_LAYERS:
            for part in ("gate", "up"):
                tensors.add_dense(name + f"ffn_{part}", (shape.dense_width, size))
            tensors.add_dense(name + "ffn_down", (size, shape.dense_width))
            continue
        tensors.add_floats(name + "ffn_gate_inp", (shape.experts, size))
        tensors.add_floats(name + "exp_probs_b", (shape.experts,), suffix="bias")
        for part, sizes in (
            ("gate", (shape.expert_width, size)),
            ("up", (shape.expert_width, size)),
            ("down", (size, shape.expert_width)),
        ):
            tensors.add_dense(name + f"ffn_{part}_shexp", sizes)
            tensors.add_experts(name + f"ffn_{part}_exps", (shape.experts, *sizes))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, shape: model_shapes.Shape, gguf: Any) -> None:
    rank, rope = model_shapes.KV_RANK, model_shapes.ROPE_WIDTH
    writer.add_block_count(shape.layers)
    writer.add_context_length(65536)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.dense_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(rope)
    writer.add_vocab_size(shape.vocab)
    writer.add_leading_dense_block_count(model_shapes.DENSE_LAYERS)
    writer.add_q_lora_rank(shape.q_rank)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(model_shapes.NOPE_WIDTH + rope)
    writer.add_value_length_mla(model_shapes.VALUE_WIDTH)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_per_token)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(shape.expert_width)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(value=True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_tokenizer_model("no_vocab")


class Tensors:
    """Random tensors in llama.cpp's forms."""

    def __init__(self, writer: Any, gguf: Any) -> None:
        """Draw with a seed."""
        import numpy  # noqa: PLC0415 - `--help` needs none

        self._writer, self._gguf, self._numpy = writer, gguf, numpy
        self._draw = numpy.random.default_rng(1)

    def add_floats(self, name: str, sizes: tuple[int, ...], suffix: str = "weight") -> None:
        """Add what stays float32: norms, routers, biases."""
        values = self._draw.normal(1 if len(sizes) == 1 else 0, 0.02, sizes)
        self._writer.add_tensor(f"{name}.{suffix}", values.astype(self._numpy.float32))

    def add_dense(self, name: str, sizes: tuple[int, ...]) -> None:
        """Add a matrix as Q8_0: of 32 columns a scale in float16, and 32 bytes."""
        self._add_blocks(name, sizes, 34, self._gguf.GGMLQuantizationType.Q8_0, 0.0003)

    def add_experts(self, name: str, sizes: tuple[int, ...]) -> None:
        """Add experts as Q4_0: of 32 columns a scale in float16, and 16 bytes."""
        self._add_blocks(name, sizes, 18, self._gguf.GGMLQuantizationType.Q4_0, 0.004)

    def _add_blocks(
        self, name: str, sizes: tuple[int, ...], each: int, form: Any, scale: float
    ) -> None:
        rows = (*sizes[:-1], sizes[-1] // 32 * each)
        data = self._draw.integers(0, 256, rows, dtype=self._numpy.uint8)
        blocks = data.reshape(-1, each)
        blocks[:, :2] = self._numpy.frombuffer(self._numpy.float16(scale).tobytes(), "u1")
        self._writer.add_tensor(f"{name}.weight", data, raw_dtype=form)
