"""Predictions that are corrected by a bench of the same machine.

Most of a prediction's spread comes from differences between machines, and these are the same at
every load of one machine. So each reading of a bench is compared with the estimate for the same
load. The offset, a logarithm, is applied to the load to predict:

    weight of a reading = 1 / (noise^2 + drift^2),    weight of no offset at all = 1 / spread^2

`spread` is that of the estimator's range, or the largest offset where that is larger: the range was
not made for a machine that is so far off. `drift` says how far an offset may change between two
loads, by doublings of the requests at once, of the prompt and of the answer. The offset is the
weighted mean. The range has the spread that remains, and at least the noise of a reading.

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

# 90 % of a normal distribution lie within so many standard deviations.
_NINE_IN_TEN = 1.645
# Log-spread that a doubling adds. In the catalogue's rows, the fit's errors at two loads of one
# machine differ by 0.08 where the requests at once are one to three doublings apart, by 0.11 at
# four, by 0.49 at seven (three pairs). With one, two and three doublings of lengths they differ by
# 0.03, 0.05 and 0.08 in decode (six pairs), and by 0.16 in prefill (18 pairs, one or two
# doublings). These figures include the noise of the readings.
_REQUESTS_DRIFT = 0.05
_QUANTITIES: dict[Literal["decode", "prefill"], str] = {
    "decode": "decode_tok_s",
    "prefill": "prefill_tok_s",
}
_LENGTHS_DRIFT = {"decode_tok_s": 0.03, "prefill_tok_s": 0.1}
# A token in eleven days. A lower value is no speed, and its logarithm would overflow a float.
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
    """Logarithm of measured over estimated speed, and its log-spread at the load to predict."""

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
    """Return an estimator that is corrected by readings of all `instances` together."""
    if not readings:
        return speak

    def estimate_anchored(serving: Serving) -> Estimate:
        estimate = speak(serving)
        decode = _combine_offsets(speak, serving, readings, "decode_tok_s", instances)
        # With several requests, the time also has the wait for other prompts.
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
    """List each reading with the estimate for the same load, in tokens a second."""
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
    """Return one instance's part of a reading's load."""
    return replace(
        serving,
        concurrency=max(1, -(-row.concurrency // instances)),
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
    )


def _combine_offsets(
    speak: Speak, serving: Serving, readings: Sequence[Reading], name: str, instances: int
) -> _Offset | None:
    """Compute the offset at a load from all readings; None where no reading has that speed."""
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
    """Estimate how far an offset may change between loads; `of_lengths`: by a doubled length."""

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
