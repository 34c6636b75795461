"""Find settings under which the same machines carry a load better than with the planner's own.

Tried are what the load allows: another published format of the weights, a smaller format of the
cache, a layout for many requests, a context that just holds the load's requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.show.report import recommendation
from kimi_prov.show.report.findings import is_possible
from kimi_prov.sizing import curve as curves
from kimi_prov.sizing import demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kimi_prov.contract.documents.check import CheckedTarget
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.sizing.load import Load

    Judge = Callable[[Facts, Mapping[str, object]], CheckedTarget]
    Other = tuple[str, CheckedTarget]

# A smaller gain lies within the error of the estimates.
MIN_GAIN = 1.1
_PACES = ("batch", "slow", "chat")


def find_better(
    target: CheckedTarget, load: Load | None, chosen: Mapping[str, object], judge: Judge
) -> Other | None:
    """Return the condition and the result of the best other settings; None where none is better.

    Settings that somebody has `chosen` stay. Where several are better each by itself, they are
    tried together too.
    """
    if load is None or not is_possible(target):
        return None
    better: dict[str, tuple[str, CheckedTarget, dict[str, object]]] = {}
    for condition, variables in _list_variables(target, load, chosen):
        other, key = judge(target["facts"], variables), next(iter(variables))
        last = better.get(key)
        if _is_better(other, last[1] if last else target, load):
            better[key] = (condition, other, variables)
    if not better:
        return None
    condition, best, _ = min(better.values(), key=lambda one: _rate(one[1], load))
    if len(better) > 1:
        variables = {name: value for _, _, one in better.values() for name, value in one.items()}
        together = judge(target["facts"], variables)
        if _is_better(together, best, load):
            return " and ".join(one for one, _, _ in better.values()), together
    return condition, best


def _list_variables(
    target: CheckedTarget, load: Load, chosen: Mapping[str, object]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Return what may be tried on the machine, as conditions and variables."""
    plan = target["plan"]
    if not target["facts"]["gpus"]:
        return
    if plan["hybrid"]:
        # What the cache leaves of the GPUs' memory holds experts.
        tokens = load.input_tokens + load.output_tokens
        if tokens < plan["model"]["context"] and "kimi_context" not in chosen:
            condition = f"a context of {tokens:,} tokens (kimi_context: {tokens})"
            yield condition, {"kimi_context": tokens}
        return
    sizing = target["sizing"]
    most = (sizing and sizing["most_requests"]) or 0
    if most < (load.users or 0) and "kimi_optimise" not in chosen:
        condition = "the layout for many at once (kimi_optimise: throughput)"
        yield condition, {"kimi_optimise": "throughput"}
    if "kimi_kv_dtype" not in chosen and plan["model"].get("kv_dtype") != "fp8":
        yield "a cache in FP8 (kimi_kv_dtype: fp8)", {"kimi_kv_dtype": "fp8"}
    if "kimi_weights_format" not in chosen:
        for row in load_catalogue().model(plan["model"]["name"]).published:
            if row.format != plan["model"]["weights_format"]:
                condition = f"the weights {row.repo} (kimi_weights_format: {row.format})"
                yield condition, {"kimi_weights_format": row.format}


def _is_better(other: CheckedTarget, target: CheckedTarget, load: Load) -> bool:
    """Whether it is cheaper at no worse pace, or as cheap and faster for all of them."""
    if not is_possible(other):
        return False
    here, there = (recommendation.build_entry(one, load) for one in (target, other))
    if there["machines"] is None or _rank_pace(other) < _rank_pace(target):
        return False
    if here["machines"] is None or there["machines"] != here["machines"]:
        return here["machines"] is None or there["machines"] < here["machines"]
    return _read_speed(other) > MIN_GAIN * _read_speed(target)


def _rank_pace(target: CheckedTarget) -> int:
    return _PACES.index(target["pace"]) if target["pace"] in _PACES else -1


def _read_speed(target: CheckedTarget) -> float:
    """Return the speed of each of the requests that one machine has at peak."""
    many = demand.count_requests_at_once(target["plan"], target["sizing"])
    row = curves.find_row(target["curve"], many)
    return (row["decode_tok_s"]["expected"] if row else None) or 0.0


def _rate(target: CheckedTarget, load: Load) -> tuple[float, float]:
    """Return a key for sorting: the smaller, the better."""
    return recommendation.build_entry(target, load)["machines"] or 0, -_read_speed(target)
