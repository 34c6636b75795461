"""Describe measurements of a machine, the values they replace, and the effect on predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.formats import clean, format_figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.check import CheckedTarget, MeasuredEffect, MeasuredInstead
    from kimi_prov.contract.documents.ranges import AmountRange

SOURCE = "kimi-prov probe --measure, kimi-prov bench, on the machine itself"
_SPEEDS = (
    ("single_tok_s", "decode of one request alone"),
    ("decode_tok_s", "decode of each request"),
    ("prefill_tok_s", "prefill"),
)


def describe_measurements(target: CheckedTarget | Mapping[str, Any]) -> str:
    """Describe the measurements in one line; empty where there are none."""
    if not target.get("measured"):
        return ""
    parts = [_describe_measurement(row) for row in target["measured"]]
    effects = _describe_effects(target["effect"] or {})
    return "Measured on the machine: " + "; ".join([", ".join(parts), *effects])


def _describe_measurement(row: MeasuredInstead) -> str:
    unit = clean(row["unit"])
    instead = row["instead_of"]
    known = (
        f"instead of {format_figure(instead)}"
        if instead is not None
        else "instead of nothing known"
    )
    return f"{clean(row['what'])} {format_figure(row['measured'])} {unit} {known}"


def _describe_effects(effect: Mapping[str, MeasuredEffect]) -> list[str]:
    """Describe each speed's prediction without the measurement and with it."""
    found = []
    for key, label in _SPEEDS:
        if key not in effect:
            continue
        before, after = effect[key]["before"], effect[key]["after"]
        speeds = f"{format_figure(before['expected'])} -> {format_figure(after['expected'])}"
        found.append(
            f"expected {label} {speeds} "
            f"tokens/s, range {_compute_width(before)} -> {_compute_width(after)} times wide"
        )
    return found


def _compute_width(span: AmountRange) -> str:
    low, high = span["low"], span["high"]
    return f"{high / low:.2f}" if high is not None and low else "any number of"
