"""Compute how many machines carry a load, from the curve of one of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.sizing import curve as curves
from kimi_prov.sizing.curve import CASES, OPPOSITE, Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import Bound, Sizing
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.estimates import SpeedsByRequests as Row
    from kimi_prov.contract.documents.ranges import Range
    from kimi_prov.sizing.load import Load

NOTHING_SERVES = "nothing serves it"
DAY_S = 86_400


def size_plan(plan: MachinePlan, load: Load, *, serves: bool) -> Sizing:
    """Return a target's `sizing` from its plan. `serves`: it has no blocker."""
    holds = load.fits(plan["model"]["context"])
    return size_load(curves.read_curve(plan["throughput"]), load, serves=serves and holds)


def count_requests_at_once(plan: MachinePlan, sizing: Mapping[str, Any] | None) -> int:
    """Return the requests at once of one machine: its share of the load, or the planned number."""
    share = (sizing or {}).get("requests_a_machine")
    return int(share or plan["throughput"]["concurrency"])


def size_load(curve: Sequence[Row], load: Load, *, serves: bool) -> Sizing:
    """Return a target's `sizing`. `serves`: it has no blocker, and its context holds a request.

    `machines` is the smallest number at high speeds (low) and the largest at low speeds (high);
    null where no number of such machines meets a limit. `requests_a_machine`: of one machine at
    peak; `most_requests`: what one carries within the limits. Tokens a day are spread evenly over
    the day; the peak is the number of users, and never more requests are in flight.
    """
    needed = {case: _count_machines(curve, load, case) if serves else None for case in CASES}
    machines, share, most = needed["expected"] or (None, None, None)
    bound = NOTHING_SERVES
    if machines is not None and most is not None:
        bound = _find_bound(curve, load, machines, most)
    elif serves and curve:
        # More machines do not change what one request alone gets.
        bound = next(iter(_list_exceeded_limits(curve[0], load, "expected")), "tokens_per_day")
    row = curves.find_row(curve, share or 1) if serves else None
    return {
        "machines": curves.compute_cases(lambda case: (needed[OPPOSITE[case]] or [None])[0]),
        "requests_a_machine": share,
        "most_requests": most,
        "bound_by": cast("Bound", bound),
        "ttft_s": _round_values(row["ttft_s"]) if row else curves.make_unknown(),
        "tpot_ms": _round_values(curves.compute_tpot(row)) if row else curves.make_unknown(),
    }


def _count_machines(curve: Sequence[Row], load: Load, case: Case) -> tuple[int, int, int] | None:
    """Return the machines, the requests of one at peak, and the most that one carries."""
    most = find_max_requests(curve, load, case)
    if most is None:
        return None
    if load.users is None:
        best = curves.find_best_rate(curve, load.inputs, case, most)
        if best is None:
            return None
        machines = max(1, math.ceil((load.tokens_per_day or 0) / (best[1] * DAY_S)))
        return machines, best[0], most
    fewest = math.ceil(load.users / most)
    # With each further machine its requests are fewer and faster: stop at the first enough.
    enough = bisect_left(
        range(fewest, load.users + 1), 1, key=lambda n: _has_enough_tokens(curve, load, case, n)
    )
    machines = fewest + enough
    if machines > load.users:
        return None
    return machines, math.ceil(load.users / machines), most


def _has_enough_tokens(curve: Sequence[Row], load: Load, case: Case, machines: int) -> bool:
    """Whether the users' requests, spread evenly, give the tokens of a day."""
    return load.tokens_per_day is None or load.tokens_per_day <= count_tokens_a_day(
        curve, load, case, machines
    )


def count_tokens_a_day(curve: Sequence[Row], load: Load, case: Case, machines: int) -> float:
    """Return the output tokens of a day if the users' requests are spread over the machines.

    With as many machines as requests each has its own: more tokens are not possible.
    """
    few, with_one_more = divmod(load.users or 0, machines)
    tokens = 0.0
    for requests, count in ((few + 1, with_one_more), (few, machines - with_one_more)):
        best = (
            curves.find_best_rate(curve, load.inputs, case, requests)
            if requests and count
            else None
        )
        tokens += best[1] * count if best else 0.0
    return tokens * DAY_S


def compute_use(curve: Sequence[Row], load: Load, sizing: Mapping[str, Any]) -> float | None:
    """Return the share of the machines' hours that the load's tokens a day need.

    None where the load has no tokens a day, or no number of machines carries it.
    """
    machines, share = sizing["machines"]["expected"], sizing["requests_a_machine"]
    if load.tokens_per_day is None or machines is None:
        return None
    row = curves.find_row(curve, share)
    rate = row and curves.compute_output_rate(row, load.inputs, "expected")
    return min(1.0, load.tokens_per_day / (machines * rate * DAY_S)) if rate else None


def find_max_requests(curve: Sequence[Row], load: Load, case: Case) -> int | None:
    """Return the most requests at once within the limits; None where one alone breaks them."""
    if not _is_within_limits(curve, load, case, 1):
        return None
    most = int(curve[-1]["concurrency"])
    # Each request slows the others: stop at the first number that breaks a limit.
    broken = bisect_left(
        range(2, most + 1), 1, key=lambda n: 1 - _is_within_limits(curve, load, case, n)
    )
    return broken + 1


def _is_within_limits(curve: Sequence[Row], load: Load, case: Case, requests: int) -> bool:
    row = curves.find_row(curve, requests)
    return row is not None and not _list_exceeded_limits(row, load, case)


def _list_exceeded_limits(row: Row, load: Load, case: Case) -> list[str]:
    """List the limits that a row exceeds; an unknown time exceeds none."""
    times = {"ttft": (row["ttft_s"], load.ttft_s), "tpot": (curves.compute_tpot(row), load.tpot_ms)}
    return [
        name
        for name, (value, limit) in times.items()
        if limit is not None and (value[OPPOSITE[case]] or 0) > limit
    ]


def _find_bound(curve: Sequence[Row], load: Load, machines: int, most: int) -> str:
    """Return what needs so many machines: the limit without which fewer would be enough."""
    by_users = math.ceil((load.users or 1) / most)
    if load.users is None or machines > by_users:
        return "tokens_per_day"
    without = math.ceil(load.users / curve[-1]["concurrency"])
    beyond = curves.find_row(curve, most + 1)
    if without < machines and beyond is not None:
        return next(iter(_list_exceeded_limits(beyond, load, "expected")), "users")
    return "users"


def _round_values(values: Range) -> Range:
    return curves.compute_cases(lambda case: _round_figure(values[case]))


def _round_figure(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
