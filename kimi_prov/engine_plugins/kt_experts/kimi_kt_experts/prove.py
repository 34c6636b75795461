"""Computes small layers with the kernel beside plain Python, which knows nothing of its order."""

from __future__ import annotations

import math
import random
import sys
from array import array
from dataclasses import dataclass, field

from kimi_kt_experts.kernel import Dense, Layer, Library
from kimi_kt_experts.numbers import distance, half, silu, times, whole
from kimi_kt_experts.prove_step import StepCase
from kimi_kt_experts.refusal import Refusal

# Activations in int8 by groups of 32 are off by a hundredth of a layer's output.
ALLOWED = 0.03


@dataclass
class Case:
    """A layer and tokens: experts, hidden size, an expert's width, tokens, experts of a token."""

    experts: int
    hidden: int
    width: int
    tokens: int
    top_k: int
    # By token; drawn where it is not given. An expert below zero is none.
    ids: list[list[int]] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        """Draw weights, tokens and routing."""
        draw = random.Random(self.seed)  # noqa: S311 - no secret
        across, back = (self.width, self.hidden), (self.hidden, self.width)
        self.packed: list[array[int]] = []
        self.scales: list[array[int]] = []
        for _ in range(self.experts):
            for rows, columns in (across, across, back):
                self.packed.append(array("B", draw.randbytes(rows * columns // 2)))
                self.scales.append(
                    array("H", [half(draw.uniform(0, 0.02)) for _ in range(rows * columns // 32)])
                )
        self.x = array("H", [half(draw.gauss(0, 1)) for _ in range(self.tokens * self.hidden)])
        self.ids = self.ids or [
            draw.sample(range(self.experts), self.top_k) for _ in range(self.tokens)
        ]
        self.shares = array("f", [draw.random() for _ in range(self.tokens * self.top_k)])

    def addresses(self) -> list[int]:
        """Where each expert's matrices are, then their scales."""
        return [
            row.buffer_info()[0]
            for expert in range(self.experts)
            for part in (self.packed, self.scales)
            for row in part[3 * expert : 3 * expert + 3]
        ]

    def by(self, kernel: Library, crossover: int, parts: int = 1) -> list[float]:
        """Compute by the kernel; of `parts` slices of each expert the sums are added."""
        sizes = (self.experts, self.hidden, self.width)
        ids = array("q", [number for row in self.ids for number in row])
        total = [0.0] * len(self.x)
        for part in range(parts):
            layer = Layer(kernel, self.addresses(), sizes, (part, parts))
            out = array("H", [half(math.nan)]) * len(self.x)
            places = [row.buffer_info()[0] for row in (self.x, ids, self.shares, out)]
            layer.compute(self.tokens, self.top_k, *places, crossover)
            total = [a + whole(b) for a, b in zip(total, out, strict=True)]
        return total

    def right(self) -> list[float]:
        """Compute the same in floating point."""
        found: list[float] = []
        plain: dict[int, list[list[float]]] = {}
        x = [whole(value) for value in self.x]
        for token, row in enumerate(self.ids):
            mine = x[token * self.hidden : (token + 1) * self.hidden]
            out = [0.0] * self.hidden
            for place, expert in enumerate(row):
                if expert < 0:
                    continue
                if expert not in plain:
                    plain[expert] = [self._plain(3 * expert + part) for part in range(3)]
                gate, up, down = plain[expert]
                inner = [
                    silu(a) * b for a, b in zip(times(gate, mine), times(up, mine), strict=True)
                ]
                share = self.shares[token * self.top_k + place]
                out = [a + share * b for a, b in zip(out, times(down, inner), strict=True)]
            found += out
        return found

    def _plain(self, matrix: int) -> list[float]:
        values = [nibble - 8 for byte in self.packed[matrix] for nibble in (byte & 15, byte >> 4)]
        scales = [whole(value) for value in self.scales[matrix]]
        return [value * scales[index // 32] for index, value in enumerate(values)]


@dataclass
class DenseCase:
    """A dense matrix and tokens: rows, columns, tokens."""

    rows: int
    columns: int
    tokens: int
    seed: int = 1

    def __post_init__(self) -> None:
        """Draw weights and tokens; some columns are far larger than others, as a model's are."""
        draw = random.Random(self.seed)  # noqa: S311 - no secret
        self.weights = array("H", [half(draw.gauss(0, 1)) for _ in range(self.rows * self.columns)])
        large = [20.0 if column % 97 == 0 else 1.0 for column in range(self.columns)]
        self.x = array(
            "H",
            [
                half(draw.gauss(0, large[i % self.columns]))
                for i in range(self.tokens * self.columns)
            ],
        )

    def by(self, kernel: Library, crossover: int) -> list[float]:
        """Compute by the kernel."""
        matrix = Dense(kernel, self.weights.buffer_info()[0], self.rows, self.columns)
        out = array("H", [half(math.nan)]) * (self.tokens * self.rows)
        matrix.compute(self.tokens, self.x.buffer_info()[0], out.buffer_info()[0], crossover)
        return [whole(value) for value in out]

    def right(self) -> list[float]:
        """Compute the same in floating point."""
        weights, x = [whole(w) for w in self.weights], [whole(value) for value in self.x]
        found: list[float] = []
        for token in range(self.tokens):
            found += times(weights, x[token * self.columns : (token + 1) * self.columns])
        return found


# Odd numbers of groups, experts that nobody asks, tokens for VNNI and for several tiles.
_SHAPES = ((4, 96, 32, 3, 1), (5, 160, 32, 20, 2), (2, 64, 96, 37, 1))
# Half a group alone and at the end, one block and an odd number, tokens for VNNI and for tiles.
_DENSE_SHAPES = ((16, 64, 1), (48, 320, 7), (80, 128, 45))


def all_builds() -> dict[str, float]:
    """Give by build the largest error, as a part of the output's size."""
    cases: list[Case | DenseCase | StepCase] = [
        *(Case(*shape) for shape in _SHAPES),
        *(DenseCase(*shape) for shape in _DENSE_SHAPES),
        StepCase((9, 1, 70)),
    ]
    right = [case.right() for case in cases]
    kernel, found = Library(), {}
    for name in ("avx2", "avx512", "amx"):
        try:
            kernel.choose(name)
        except Refusal:
            continue
        found[name] = max(
            distance(case.by(kernel, crossover), wanted)
            for case, wanted in zip(cases, right, strict=True)
            for crossover in (1, 99)
        )
    return found


def main() -> int:
    """Say how far each build is off; fails where one is farther than it may be."""
    found = all_builds()
    for name, error in found.items():
        sys.stdout.write(f"{name}: off by {error:.4f} of the output\n")
    if max(found.values()) < ALLOWED:
        return 0
    sys.stderr.write(f"kimi-kt-experts: the kernel computes wrongly; allowed is {ALLOWED}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
