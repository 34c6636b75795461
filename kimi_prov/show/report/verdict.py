"""Describe whether a target serves the model, in a word and in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.report.findings import filter_severity, is_by_hand, list_warnings
from kimi_prov.show.text import formats
from kimi_prov.show.text.formats import Span, clean, format_figure, format_sentence, read_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.check import CheckedTarget as Target


STATUS = {
    "fits": "Fits",
    "warnings": "Fits, with warnings",
    "hand": "Possible by hand",
    "blocked": "Blocked",
}


def format_title(targets: Sequence[Target]) -> str:
    """Return the title of the report."""
    models = list(dict.fromkeys(clean(t["plan"]["model"]["name"]) for t in targets))
    many = (
        f"{clean(targets[0]['name'])}" if len(targets) == 1 else f"{len(targets)} machines compared"
    )
    return f"Serving {' and '.join(models)}: {many}"


def get_status(target: Target) -> str:
    """Return "blocked", "hand", "warnings" or "fits"."""
    if is_by_hand(target):
        return "hand"
    if filter_severity(target, "blocker"):
        return "blocked"
    return "warnings" if list_warnings(target) else "fits"


def describe_verdict(target: Target) -> str:
    """Describe in a sentence or two whether the target serves the model, and how well."""
    plan = target["plan"]
    model = f"{clean(plan['model']['name'])} ({plan['model']['weights_format']})"
    blockers = filter_severity(target, "blocker")
    if blockers and not is_by_hand(target):
        more = len(blockers) - 1
        rest = f" {more} more thing{'s' * (more > 1)} in the way." if more else ""
        return f"Cannot serve {model} as it stands. {format_sentence(blockers[0]['title'])}{rest}"
    speed = read_span(plan["throughput"]["decode_tok_s"])
    many, context = plan["throughput"]["concurrency"], plan["model"]["context"]
    pace = "speed not estimated"
    if speed.expected is not None:
        pace = f"each at about {_describe_pace(speed)}"
    few = count_running(target)
    wait = f" ({few:,} of them running, the others waiting)" if few < many else ""
    return (
        f"Serves {model} with {describe_engine(target)}: up to {context:,} tokens of context, "
        f"{many:,} request{'s' * (many != 1)} at once{wait}, {pace}."
        + _describe_installation(target)
    )


def _describe_installation(target: Target) -> str:
    """Write that the engine has to be installed by hand, if `apply` does not install it."""
    if not is_by_hand(target):
        return ""
    return " Possible by hand alone: this program does not install that engine on such a machine."


def count_running(target: Target) -> int:
    """Return how many of the planned requests run at the same time in the speeds."""
    speed = target["plan"]["throughput"]
    return int(speed.get("running", speed["concurrency"]))


def describe_engine(target: Target) -> str:
    """Describe the engine, its version and build."""
    return clean(formats.describe_engine(target["plan"]["engine"]))


def _describe_pace(speed: Span) -> str:
    if speed.low is None or speed.high is None:
        return f"{format_figure(speed.expected)} tokens/s"
    low, high = format_figure(speed.low), format_figure(speed.high)
    return f"{format_figure(speed.expected)} tokens/s ({low} to {high})"
