"""A decode step of all layers in one call of the own kernel, by ctypes: no torch is needed here."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from kimi_kt_experts.kernel import CROSSOVER, DENSE_CROSSOVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_kt_experts.kernel import Library

# What native/step.h is compiled for.
MAX_TOKENS, MAX_EXPERTS, LANES, EXPERT_ROWS = 64, 1024, 16, 16

_ADDRESS, _INT, _SIZE, _FLOAT = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_float,
)


class LayerFields(ctypes.Structure):
    """`struct layer` of native/step.h."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("input_norm", "post_norm", "q_norm", "kv_norm")),
        *((name, _ADDRESS) for name in ("qkv_a", "q_b", "o", "gate_up", "down", "kv_b")),
        *((name, _ADDRESS) for name in ("router", "bias", "experts", "cache")),
        *((name, _INT) for name in ("width", "expert_count", "expert_width", "top_k")),
        ("routed_scale", _FLOAT),
        ("renormalise", _INT),
    )


class StepFields(ctypes.Structure):
    """`struct step` of native/step.h."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("layers", "rotary", "hidden", "residual")),
        *((name, _ADDRESS) for name in ("positions", "slots", "blocks", "lengths")),
        *((name, _SIZE) for name in ("row_stride", "block_stride", "table_stride")),
        *((name, _INT) for name in ("layer_count", "tokens", "hidden_size", "heads")),
        *((name, _INT) for name in ("q_rank", "kv_rank", "rope", "nope", "value", "block_size")),
        *((name, _INT) for name in ("crossover", "dense_crossover")),
        ("epsilon", _FLOAT),
        ("scale", _FLOAT),
    )


class Step:
    """A model's layers, ready for steps of few tokens. Sizes are fields of StepFields."""

    def __init__(
        self, kernel: Library, layers: Sequence[LayerFields], sizes: dict[str, float]
    ) -> None:
        """Keep the layers' addresses; who calls keeps what is at them."""
        self._kernel = kernel
        self.layers = (LayerFields * len(layers))(*layers)
        self._fields = StepFields(
            layers=ctypes.addressof(self.layers),
            layer_count=len(layers),
            crossover=CROSSOVER,
            dense_crossover=DENSE_CROSSOVER,
            **sizes,
        )

    def compute(self, **fields: int) -> None:
        """Compute a step in place; `fields`: addresses, strides and tokens of StepFields."""
        for name, value in fields.items():
            setattr(self._fields, name, value)
        if self._kernel.step(ctypes.addressof(self._fields)):
            raise MemoryError(f"no memory to compute {self._fields.tokens} tokens")


def find_gap(sizes: dict[str, int]) -> str:
    """Say which of a layer's sizes the kernel is not made for, or nothing.

    Dense matrices were laid out before, so that their sizes are right.
    """
    if sizes["kv_rank"] % LANES or sizes["rope"] % LANES:
        return f"a cache of {sizes['kv_rank']} and {sizes['rope']} values"
    if sizes["experts"] % EXPERT_ROWS or sizes["experts"] > MAX_EXPERTS:
        return f"{sizes['experts']} experts"
    return ""
