"""Computes whole layers of a small model with the kernel beside plain Python.

Python rounds where the kernel and vLLM round: to bf16 between products, and a product's factors to
int8 by groups. So what is left is the order of sums, and a difference tells of an error.
"""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kimi_kt_experts.kernel import Dense, Layer
from kimi_kt_experts.numbers import half, silu, single, times, whole
from kimi_kt_experts.step import LayerFields, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_kt_experts.kernel import Library

DENSE_GROUP, EXPERT_GROUP, BLOCK = 128, 32, 4
EPSILON, SCALE, ROUTED = 1e-5, 0.11, 2.5


def bf16(row: Sequence[float]) -> list[float]:
    """Round to bf16."""
    return [whole(half(value)) for value in row]


def int8(row: Sequence[float], group: int) -> list[float]:
    """Round to int8 with a scale for each group."""
    found: list[float] = []
    for start in range(0, len(row), group):
        part = row[start : start + group]
        most = max(map(abs, part))
        # In float32, as the kernel: half of the largest value is as near to 63 as to 64.
        by = single(127 / most) if most else 0.0
        found += [round(single(x * by)) * most / 127 for x in part]
    return found


@dataclass(eq=False)
class StepCase:
    """A model of two layers, the second with experts, and requests of some `lengths`."""

    lengths: tuple[int, ...]
    hidden: int = 128
    heads: int = 2
    q_rank: int = 64
    kv_rank: int = 64
    rope: int = 16
    nope: int = 32
    value: int = 64
    widths: tuple[int, int] = (192, 64)
    experts: int = 16
    expert_width: int = 64
    top_k: int = 3
    seed: int = 1
    layers: list[dict[str, list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw weights, cache and tokens."""
        self._draw = random.Random(self.seed)  # noqa: S311 - no secret
        size, heads, rank = self.hidden, self.heads, self.kv_rank
        shapes = {
            "qkv_a": (self.q_rank + rank + self.rope, size),
            "q_b": (heads * (self.nope + self.rope), self.q_rank),
            "o": (size, heads * self.value),
            "kv_b": (heads * (self.nope + self.value), rank),
            "router": (self.experts, size),
        }
        for width in self.widths:
            layer = {n: self._some(rows * cols, cols**-0.5) for n, (rows, cols) in shapes.items()}
            layer["gate_up"] = self._some(2 * width * size, size**-0.5)
            layer["down"] = self._some(size * width, width**-0.5)
            for name, count in (("input_norm", size), ("post_norm", size)):
                layer[name] = [1 + x for x in self._some(count, 0.1)]
            layer["q_norm"] = [1 + x for x in self._some(self.q_rank, 0.1)]
            layer["kv_norm"] = [1 + x for x in self._some(rank, 0.1)]
            layer = {name: bf16(row) for name, row in layer.items()}
            layer["bias"] = self._some(self.experts, 0.2)
            self.layers.append(layer)
        self._draw_experts()
        self._draw_requests()

    def _some(self, count: int, size: float) -> list[float]:
        return [self._draw.gauss(0, size) for _ in range(count)]

    def _draw_experts(self) -> None:
        across, back = (self.expert_width, self.hidden), (self.hidden, self.expert_width)
        self._packed: list[array[int]] = []
        self._scales: list[array[int]] = []
        for _ in range(self.experts):
            for rows, columns in (across, across, back):
                self._packed.append(array("B", self._draw.randbytes(rows * columns // 2)))
                scales = [half(self._draw.uniform(0, 0.03)) for _ in range(rows * columns // 32)]
                self._scales.append(array("H", scales))

    def _draw_requests(self) -> None:
        """Give each request blocks of the cache in any order, and its new token the last place."""
        count = [-(-length // BLOCK) for length in self.lengths]
        free = list(range(sum(count) + 2))
        self._draw.shuffle(free)
        self.tables = [[free.pop() for _ in range(blocks)] for blocks in count]
        row = self.kv_rank + self.rope
        self.caches = [bf16(self._some((sum(count) + 2) * BLOCK * row, 1)) for _ in self.widths]
        self.x = [bf16(self._some(self.hidden, 1)) for _ in self.lengths]
        angles = [
            [place / 50 ** (2 * i / self.rope) for i in range(self.rope // 2)]
            for place in range(max(self.lengths))
        ]
        self.rotary = [[*map(math.cos, row), *map(math.sin, row)] for row in angles]

    def by(self, kernel: Library, crossover: int) -> list[float]:
        """Compute by the kernel: what leaves the last layer, its residual, the cache's new rows."""
        kept: list[object] = []

        def halves(values: Sequence[float]) -> int:
            kept.append(array("H", map(half, values)))
            return int(kept[-1].buffer_info()[0])  # type: ignore[attr-defined]

        def dense(values: Sequence[float], columns: int) -> int:
            made = Dense(kernel, halves(values), len(values) // columns, columns)
            kept.append(made)
            return made.address

        sizes = (self.experts, self.hidden, self.expert_width)
        addresses = [
            row.buffer_info()[0]
            for expert in range(self.experts)
            for part in (self._packed, self._scales)
            for row in part[3 * expert : 3 * expert + 3]
        ]
        experts = Layer(kernel, addresses, sizes)
        fields, caches = [], []
        for index, layer in enumerate(self.layers):
            caches.append(array("H", map(half, self.caches[index])))
            bias = array("f", layer["bias"])
            kept.append(bias)
            more = {
                "router": halves(layer["router"]),
                "bias": bias.buffer_info()[0],
                "experts": experts.address,
                "expert_count": self.experts,
                "expert_width": self.expert_width,
                "top_k": self.top_k,
            }
            columns = {"qkv_a": self.hidden, "q_b": self.q_rank, "o": self.heads * self.value}
            columns |= {"gate_up": self.hidden, "down": self.widths[index]}
            fields.append(
                LayerFields(
                    **{n: halves(layer[n]) for n in layer if n.endswith("_norm") or n == "kv_b"},
                    **{name: dense(layer[name], count) for name, count in columns.items()},
                    cache=caches[-1].buffer_info()[0],
                    width=self.widths[index],
                    routed_scale=ROUTED,
                    renormalise=1,
                    **(more if index else {}),
                )
            )
        step = Step(
            kernel,
            fields,
            {
                **{n: getattr(self, n) for n in ("heads", "q_rank", "kv_rank", "rope", "nope")},
                "value": self.value,
                "hidden_size": self.hidden,
                "block_size": BLOCK,
                "epsilon": EPSILON,
                "scale": SCALE,
            },
        )
        widest = max(map(len, self.tables))
        row = self.kv_rank + self.rope
        arrays = {
            "hidden": array("H", [half(value) for token in self.x for value in token]),
            "residual": array("H", bytes(2 * self.hidden * len(self.x))),
            "positions": array("q", [length - 1 for length in self.lengths]),
            "slots": array("q", map(self._slot, range(len(self.lengths)))),
            "blocks": array("i", [x for t in self.tables for x in (*t, *[-1] * (widest - len(t)))]),
            "lengths": array("i", self.lengths),
            "rotary": array("f", [value for angles in self.rotary for value in angles]),
        }
        step.compute(
            **{name: values.buffer_info()[0] for name, values in arrays.items()},
            tokens=len(self.lengths),
            row_stride=row,
            block_stride=row * BLOCK,
            table_stride=widest,
            crossover=crossover,
            dense_crossover=crossover,
        )
        out = [whole(value) for name in ("hidden", "residual") for value in arrays[name]]
        for cache in caches:
            for token in range(len(self.lengths)):
                slot = self._slot(token)
                out += [whole(value) for value in cache[slot * row : slot * row + row]]
        return out

    def _slot(self, token: int) -> int:
        last = self.lengths[token] - 1
        return self.tables[token][last // BLOCK] * BLOCK + last % BLOCK

    def right(self) -> list[float]:
        """Compute the same in Python, token by token."""
        row = self.kv_rank + self.rope
        hidden: list[float] = []
        residual: list[float] = []
        written: list[list[float]] = [[] for _ in self.layers]
        for token in range(len(self.lengths)):
            x, rest = self.x[token], [0.0] * self.hidden
            for index, layer in enumerate(self.layers):
                x, rest, new = self._attention(layer, self.caches[index], token, x, rest)
                written[index] += new
                x, rest = self._feed_forward(index, layer, x, rest)
            hidden += x
            residual += rest
        assert all(len(rows) == row * len(self.lengths) for rows in written)  # noqa: S101
        return hidden + residual + [value for rows in written for value in rows]

    def _norm(self, x: Sequence[float], weight: Sequence[float]) -> list[float]:
        by = 1 / math.sqrt(sum(value * value for value in x) / len(x) + EPSILON)
        return bf16([whole(half(a * by)) * w for a, w in zip(x, weight, strict=True)])

    def _dense(self, weights: list[float], x: Sequence[float]) -> list[float]:
        rows = [
            value
            for start in range(0, len(weights), len(x))
            for value in int8(weights[start : start + len(x)], DENSE_GROUP)
        ]
        return bf16(times(rows, int8(x, DENSE_GROUP)))

    def _rotate(self, token: int, x: Sequence[float]) -> list[float]:
        angles = self.rotary[self.lengths[token] - 1]
        cosines, sines = angles[: self.rope // 2], angles[self.rope // 2 :]
        found: list[float] = []
        for i, (cosine, sine) in enumerate(zip(cosines, sines, strict=True)):
            one, other = x[2 * i], x[2 * i + 1]
            parts = bf16([one * cosine, other * sine, other * cosine, one * sine])
            found += [parts[0] - parts[1], parts[2] + parts[3]]
        return bf16(found)

    def _attention(
        self,
        layer: dict[str, list[float]],
        cache: list[float],
        token: int,
        x: list[float],
        rest: list[float],
    ) -> tuple[list[float], list[float], list[float]]:
        rank, size = self.kv_rank, self.kv_rank + self.rope
        added = [a + b for a, b in zip(x, rest, strict=True)]
        qkv = self._dense(layer["qkv_a"], self._norm(added, layer["input_norm"]))
        q_c, kv_c, k = (
            qkv[: self.q_rank],
            qkv[self.q_rank : self.q_rank + rank],
            qkv[self.q_rank + rank :],
        )
        new = self._norm(kv_c, layer["kv_norm"]) + self._rotate(token, k)
        keys = [
            cache[at * size : at * size + size]
            for at in (
                self.tables[token][place // BLOCK] * BLOCK + place % BLOCK
                for place in range(self.lengths[token] - 1)
            )
        ] + [new]
        q = self._dense(layer["q_b"], self._norm(q_c, layer["q_norm"]))
        attended: list[float] = []
        for head in range(self.heads):
            mine = q[head * (self.nope + self.rope) : (head + 1) * (self.nope + self.rope)]
            at = head * (self.nope + self.value) * rank
            w = layer["kv_b"][at : at + (self.nope + self.value) * rank]
            absorbed = bf16(
                [sum(mine[p] * w[p * rank + i] for p in range(self.nope)) for i in range(rank)]
            ) + self._rotate(token, mine[self.nope :])
            scores = [value * SCALE for value in times([x for key in keys for x in key], absorbed)]
            most = max(scores)
            shares = [math.exp(score - most) for score in scores]
            total = sum(shares)
            latent = bf16(
                [
                    sum(share * key[i] for share, key in zip(shares, keys, strict=True)) / total
                    for i in range(rank)
                ]
            )
            attended += bf16(times(w[self.nope * rank :], latent))
        return self._dense(layer["o"], attended), bf16(added), new

    def _feed_forward(
        self, index: int, layer: dict[str, list[float]], x: list[float], rest: list[float]
    ) -> tuple[list[float], list[float]]:
        added = [a + b for a, b in zip(x, rest, strict=True)]
        normed = self._norm(added, layer["post_norm"])
        both = self._dense(layer["gate_up"], normed)
        width = self.widths[index]
        gate = bf16([silu(value) for value in both[:width]])
        inner = bf16([a * b for a, b in zip(gate, both[width:], strict=True)])
        out = self._dense(layer["down"], inner)
        if not index:
            return out, bf16(added)
        logits = bf16(times(layer["router"], normed))
        scores = [1 / (1 + math.exp(-value)) for value in logits]
        order = sorted(range(self.experts), key=lambda e: -(scores[e] + layer["bias"][e]))
        total = sum(scores[expert] for expert in order[: self.top_k])
        routed = [0.0] * self.hidden
        for expert in order[: self.top_k]:
            part = self._expert(expert, int8(normed, EXPERT_GROUP))
            routed = [a + scores[expert] / total * b for a, b in zip(routed, part, strict=True)]
        scaled = bf16([value * ROUTED for value in bf16(routed)])
        return bf16([a + b for a, b in zip(out, scaled, strict=True)]), bf16(added)

    def _expert(self, expert: int, x: list[float]) -> list[float]:
        gate, up, down = (self._plain(3 * expert + part) for part in range(3))
        inner = [silu(a) * b for a, b in zip(times(gate, x), times(up, x), strict=True)]
        return times(down, int8(inner, EXPERT_GROUP))

    def _plain(self, matrix: int) -> list[float]:
        values = [n - 8 for byte in self._packed[matrix] for n in (byte & 15, byte >> 4)]
        scales = [whole(value) for value in self._scales[matrix]]
        return [value * scales[index // 32] for index, value in enumerate(values)]
