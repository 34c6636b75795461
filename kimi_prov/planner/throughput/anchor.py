"""Predictions that are held to what a bench of the same machine measured.

What sets a machine apart from another is most of a prediction's spread, and it is the same at every
load of one machine. So each reading of a bench is compared with what the estimator says for the
very same load, and the offset, a logarithm, is carried over to the load that is asked for:

    weight of a reading = 1 / (noise^2 + drift^2),    weight of no offset at all = 1 / spread^2

`spread` is the estimator's own, of its range, or the largest offset where that is larger: a machine
so far off is none of those that the range was made for. `drift` is how far an offset may change on
the way: by doublings of the requests at once, of the prompt, of the answer. The offset is the
weighted mean; a range is as wide as what remains, never narrower than the noise of a reading.

Decides: what a measured part of a machine counts for, and a bench of it (the bench).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.planner.throughput.cases import NOISE
from kimi_prov.planner.throughput.inputs import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan.estimates import MeasuredAnchor
    from kimi_prov.planner.throughput.inputs import Estimate, Serving

    Speak = Callable[[Serving], Estimate]

# Nine times in ten, of a normal distribution.
_NINE_IN_TEN = 1.645
# Log-spread that a doubling adds. The fit's misses at two loads of one machine, in the catalogue's
# rows, differ by 0.08 where the requests at once are one to three doublings apart, by 0.11 at four,
# by 0.49 at seven (three pairs); with one, two and three doublings of lengths by 0.03, 0.05 and
# 0.08 in decode (six pairs), by 0.16 in prefill (18 pairs of one or two). The readings' own noise
# is a part of that.
_REQUESTS_DRIFT = 0.05
_QUANTITIES: dict[Literal["decode", "prefill"], str] = {
    "decode": "decode_tok_s",
    "prefill": "prefill_tok_s",
}
_LENGTHS_DRIFT = {"decode_tok_s": 0.03, "prefill_tok_s": 0.1}
# A token in eleven days: less is no speed, and its logarithm leads out of what floats hold.
_MIN_TOK_S = 1e-6


@dataclass(frozen=True)
class Reading:
    """Speeds that a bench measured at one load, in tokens a second; None where it has none."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    decode_tok_s: float | None
    prefill_tok_s: float | None


@dataclass(frozen=True)
class _Offset:
    """Logarithm of measured over estimated, and its log-spread at the load that is asked for."""

    value: float
    spread: float


def read_readings(facts: Facts) -> tuple[Reading, ...]:
    """Read what a bench of this machine measured; none where there was none."""
    return tuple(
        Reading(
            *(row[name] for name in ("concurrency", "input_tokens", "output_tokens")),
            *(_read_speed(row[name]) for name in ("decode_tok_s", "prefill_tok_s")),
        )
        for row in facts.get("bench") or ()
    )


def _read_speed(value: float | None) -> float | None:
    return value if value is not None and value >= _MIN_TOK_S else None


def anchor_estimator(speak: Speak, readings: Sequence[Reading], instances: int = 1) -> Speak:
    """Give an estimator that is held to readings of all `instances` together."""
    if not readings:
        return speak

    def estimate_anchored(serving: Serving) -> Estimate:
        estimate = speak(serving)
        decode = _combine_offsets(speak, serving, readings, "decode_tok_s", instances)
        # What waits for other prompts says nothing of how fast one is read.
        alone = [row for row in readings if row.concurrency == 1]
        prefill = _combine_offsets(
            speak, replace(serving, concurrency=1), alone, "prefill_tok_s", 1
        )
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(estimate):
            value = getattr(estimate, field.name)
            if field.name in ("decode_tok_s", "aggregate_tok_s"):
                changed[field.name] = _shift_range(value, decode)
            elif field.name == "prefill_tok_s":
                changed[field.name] = _shift_range(value, prefill)
            elif field.name.endswith("ttft_s"):
                changed[field.name] = _invert_range(_shift_range(_invert_range(value), prefill))
        return replace(estimate, **changed)

    return estimate_anchored


def compare_readings(
    speak: Speak, serving: Serving, readings: Sequence[Reading], instances: int = 1
) -> list[MeasuredAnchor]:
    """Put each reading beside what the estimator says for its load, in tokens a second."""
    return [
        {
            "quantity": quantity,
            "concurrency": row.concurrency,
            "input_tokens": row.input_tokens,
            "output_tokens": row.output_tokens,
            "measured": getattr(row, name),
            "predicted": float(f"{_estimate_reading(speak, serving, row, name, instances):.3g}"),
        }
        for quantity, name in _QUANTITIES.items()
        for row in readings
        if getattr(row, name) and (quantity == "decode" or row.concurrency == 1)
    ]


def _estimate_reading(
    speak: Speak, serving: Serving, row: Reading, name: str, instances: int
) -> float:
    at = _make_load(serving, row, instances)
    speed: Range = getattr(speak(at), name)
    return speed.expected


def _make_load(serving: Serving, row: Reading, instances: int) -> Serving:
    """Give the load of a reading, as one instance has it."""
    return replace(
        serving,
        concurrency=max(1, -(-row.concurrency // instances)),
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
    )


def _combine_offsets(
    speak: Speak, serving: Serving, readings: Sequence[Reading], name: str, instances: int
) -> _Offset | None:
    """Give the offset at a load from all readings; None where none has that speed."""
    span: Range = getattr(speak(serving), name)
    noise = NOISE["high"]
    weighted = []
    for row in readings:
        value = getattr(row, name)
        if value:
            offset = math.log(value / _estimate_reading(speak, serving, row, name, instances))
            drift = _estimate_drift(
                serving, _make_load(serving, row, instances), _LENGTHS_DRIFT[name]
            )
            weighted.append((offset, 1 / (noise**2 + drift**2)))
    if not weighted:
        return None
    own = math.log(span.high / span.low) / 2 / _NINE_IN_TEN
    total = max(own, *(abs(offset) for offset, _ in weighted)) ** -2
    pull = 0.0
    for offset, weight in weighted:
        total += weight
        pull += weight * offset
    return _Offset(pull / total, min(own, max(noise, total**-0.5)))


def _estimate_drift(here: Serving, there: Serving, of_lengths: float) -> float:
    """How far an offset may change between two loads; `of_lengths` for a doubling of lengths."""

    def doublings(one: float, other: float) -> float:
        return abs(math.log2(one / other))

    requests = doublings(here.running, there.running)
    lengths = doublings(here.input_tokens, there.input_tokens)
    lengths += doublings(here.output_tokens, there.output_tokens)
    return _REQUESTS_DRIFT * requests + of_lengths * lengths


def _shift_range(span: Range, offset: _Offset | None) -> Range:
    if offset is None:
        return span
    expected = span.expected * math.exp(offset.value)
    half = math.exp(_NINE_IN_TEN * offset.spread)
    return Range(expected / half, expected, expected * half)


def _invert_range(span: Range) -> Range:
    return Range(1 / span.high, 1 / span.expected, 1 / span.low)
