"""Speeds of a machine at any number of requests at once, interpolated on its curve.

A curve has a row for 1, 2, 4, ... requests at once, the last one for as many as can run:
{concurrency, decode_tok_s, aggregate_tok_s, prefill_tok_s, ttft_s}. All but the first are ranges
{low, expected, high} in tokens a second, `ttft_s` in seconds. Requests beyond the last row wait:
the machine stays at that row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.contract.documents.plan.estimates import SpeedsByRequests as Row
    from kimi_prov.contract.documents.plan.estimates import ThroughputPlan
    from kimi_prov.contract.documents.ranges import Range

    Rates = Row | ThroughputPlan

Case = Literal["low", "expected", "high"]
CASES: tuple[Case, ...] = ("low", "expected", "high")
# A high speed makes a low time.
OPPOSITE: dict[Case, Case] = {"low": "high", "expected": "expected", "high": "low"}
# About the speed at which people read a text, and a third of it.
CHAT_TOK_S, SLOW_TOK_S = 10.0, 3.0


def compute_cases(compute: Callable[[Case], float | None]) -> Range:
    """Return a figure for each case."""
    return {"low": compute("low"), "expected": compute("expected"), "high": compute("high")}


def make_unknown() -> Range:
    """Return a figure that is unknown in each case."""
    return compute_cases(lambda _: None)


def read_curve(throughput: ThroughputPlan) -> list[Row]:
    """Return the curve of a plan's `throughput`: only the planned point if there is no other."""
    if not throughput["decode_tok_s"]["expected"]:
        return []
    planned: Row = {
        "concurrency": throughput["concurrency"],
        "decode_tok_s": throughput["decode_tok_s"],
        "aggregate_tok_s": throughput["aggregate_tok_s"],
        "prefill_tok_s": throughput["prefill_tok_s"],
        "ttft_s": throughput["ttft_s"],
    }
    return throughput.get("curve") or [planned]


def read_single_request(throughput: ThroughputPlan) -> Row:
    """Return the row of one request alone, of a plan's `throughput` with an estimate."""
    single = throughput["single_tok_s"]
    return {
        "concurrency": 1,
        "decode_tok_s": single,
        "aggregate_tok_s": single,
        "prefill_tok_s": throughput["prefill_tok_s"],
        "ttft_s": throughput["single_ttft_s"],
    }


def find_row(curve: Sequence[Row], requests: int) -> Row | None:
    """Return the row for so many requests at once; None for a machine without a curve.

    Between two rows all times grow linearly with the requests, also the time of a token: each
    request adds its own share to a step.
    """
    if not curve:
        return None
    for row in curve:
        if row["concurrency"] == requests:
            return row
    for few, many in pairwise(curve):
        if few["concurrency"] < requests < many["concurrency"]:
            return _interpolate(few, many, requests)
    return curve[-1] if requests > curve[-1]["concurrency"] else curve[0]


def _interpolate(few: Row, many: Row, requests: int) -> Row:
    part = (requests - few["concurrency"]) / (many["concurrency"] - few["concurrency"])
    decode = _interpolate_speeds(few["decode_tok_s"], many["decode_tok_s"], part)
    few_s, many_s = few["ttft_s"], many["ttft_s"]
    return {
        "concurrency": requests,
        "decode_tok_s": decode,
        "aggregate_tok_s": compute_cases(lambda case: (decode[case] or 0.0) * requests or None),
        "prefill_tok_s": _interpolate_speeds(few["prefill_tok_s"], many["prefill_tok_s"], part),
        "ttft_s": compute_cases(lambda case: _interpolate_rate(few_s[case], many_s[case], part)),
    }


def _interpolate_speeds(few: Range, many: Range, part: float) -> Range:
    return compute_cases(lambda case: _interpolate_speed(few[case], many[case], part))


def _interpolate_speed(few: float | None, many: float | None, part: float) -> float | None:
    seconds = _interpolate_rate(1 / few if few else None, 1 / many if many else None, part)
    return 1 / seconds if seconds else None


def _interpolate_rate(few: float | None, many: float | None, part: float) -> float | None:
    if few is None or many is None:
        return None
    return few + (many - few) * part


def compute_output_rate(row: Rates, inputs: float, case: Case) -> float | None:
    """Return output tokens a second of all requests, with the time to prefill their prompts.

    `inputs`: tokens of a prompt for each token of its answer. The speed of a request that runs has
    the other requests' prompts in it already; its own is computed before its first token. Counted
    for all of them, prompts would be charged twice: of 116 benches of the catalogue the output is
    1.05 times this figure in the median, and 1.22 times that one.
    """
    writing, each = row["aggregate_tok_s"][case], row["decode_tok_s"][case]
    reading = row["prefill_tok_s"][case]
    if not writing or not each:
        return None
    return float(writing / (1 + (inputs * each / reading if reading else 0)))


def find_best_rate(
    curve: Sequence[Row], inputs: float, case: Case, most: int
) -> tuple[int, float] | None:
    """Return the requests at once, up to `most`, with the largest output, and that output."""
    tried = [*(row for row in curve if row["concurrency"] < most), find_row(curve, most)]
    rates = [
        (int(row["concurrency"]), rate)
        for row in tried
        if row is not None and (rate := compute_output_rate(row, inputs, case))
    ]
    return max(rates, key=lambda pair: (pair[1], -pair[0]), default=None)


def compute_tpot(row: Row) -> Range:
    """Return milliseconds between two tokens of a request; a high speed gives the low time."""
    speed = row["decode_tok_s"]
    return compute_cases(lambda case: _compute_ms(speed[OPPOSITE[case]]))


def _compute_ms(speed: float | None) -> float | None:
    return 1000 / speed if speed else None


def classify_pace(curve: Sequence[Row], requests: int) -> Literal["chat", "slow", "batch"] | None:
    """Return the pace of the slower of one request alone and each of so many.

    chat: 10 tokens a second or more. slow: 3 or more. batch: less. None: no speed is known.
    """
    rows = [find_row(curve, 1), find_row(curve, requests)]
    speeds = [row["decode_tok_s"]["expected"] for row in rows if row is not None]
    known = [speed for speed in speeds if speed]
    if not known:
        return None
    slowest = min(known)
    if slowest >= CHAT_TOK_S:
        return "chat"
    return "slow" if slowest >= SLOW_TOK_S else "batch"
