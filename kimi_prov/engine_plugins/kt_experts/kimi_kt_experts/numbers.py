"""Plain arithmetic in Python for what proves the kernel."""

from __future__ import annotations

import math
from struct import pack, unpack


def distance(found: list[float], wanted: list[float]) -> float:
    """How far apart two outputs are, as a part of the second's size."""
    return math.dist(found, wanted) / math.hypot(*wanted)


def times(matrix: list[float], vector: list[float]) -> list[float]:
    """Multiply a matrix of rows with a vector."""
    size = len(vector)
    rows = (matrix[start : start + size] for start in range(0, len(matrix), size))
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in rows]


def silu(value: float) -> float:
    """Give a number times its logistic function."""
    return value / (1 + math.exp(-value)) if value > -700 else 0.0


def half(value: float) -> int:
    """Give the bf16 nearest to a number; of two as near, the even one."""
    if math.isnan(value):
        return 0x7FC0
    bits = int(unpack("<I", pack("<f", value))[0])
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16) & 0xFFFF


def single(value: float) -> float:
    """Round to float32."""
    return float(unpack("<f", pack("<f", value))[0])


def whole(bits: int) -> float:
    """Give the number that a bf16 is."""
    return float(unpack("<f", pack("<I", bits << 16))[0])
