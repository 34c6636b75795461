"""The `throughput` section of the plan, written from estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents import ranges
    from kimi_prov.contract.documents.plan.estimates import ThroughputPlan
    from kimi_prov.planner.throughput import Estimate, Serving
    from kimi_prov.planner.throughput.inputs import Range


def write_document(
    many: int, running: int, serving: Serving, estimate: Estimate, alone: Estimate, together: Range
) -> ThroughputPlan:
    """Write `throughput` for `many` requests at once, of which so many are `running`."""
    return {
        "concurrency": many,
        "running": running,
        "decode_tok_s": _round_range(estimate.decode_tok_s),
        "single_tok_s": _round_range(alone.decode_tok_s),
        "aggregate_tok_s": _round_range(together),
        "prefill_tok_s": _round_range(estimate.prefill_tok_s),
        "ttft_s": _round_range(estimate.ttft_s),
        "single_ttft_s": _round_range(estimate.single_ttft_s),
        "load_s": _round_range(estimate.load_s),
        "basis": estimate.basis,
        "kind": estimate.kind,
        "input_tokens": int(serving.input_tokens),
        "output_tokens": int(serving.output_tokens),
    }


def make_empty_document(concurrency: int, basis: str) -> ThroughputPlan:
    """Make a `throughput` without figures; `basis` says why there are none."""
    return {
        "concurrency": concurrency,
        "decode_tok_s": _make_empty_range(),
        "single_tok_s": _make_empty_range(),
        "aggregate_tok_s": _make_empty_range(),
        "prefill_tok_s": _make_empty_range(),
        "ttft_s": _make_empty_range(),
        "single_ttft_s": _make_empty_range(),
        "load_s": _make_empty_range(),
        "basis": basis,
    }


def _make_empty_range() -> ranges.Range:
    return {"low": None, "expected": None, "high": None}


def _round_range(value: Range) -> ranges.Range:
    return {
        "low": _round(value.low),
        "expected": _round(value.expected),
        "high": _round(value.high),
    }


def _round(value: float) -> float:
    """Round to three figures, because the estimates are not more precise."""
    return float(f"{value:.3g}")
