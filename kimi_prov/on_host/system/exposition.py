"""The text form of metrics, as Prometheus reads it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Union

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

Number = Union[int, float, bool]
# A label identifies a series, and has no space for a message.
_MAX_LABEL_LENGTH = 200


class Sample(NamedTuple):
    """One value of a metric. A `value` of None is unknown, and is left out."""

    name: str
    value: Number | None
    labels: Mapping[str, str] = {}


def render(samples: list[Sample], helps: Mapping[str, str]) -> str:
    """Return the text; metrics in the order of `helps`, which names and explains each of them.

    Names that end in `_total` are counters, all others gauges.
    """
    found: dict[str, list[str]] = {name: [] for name in helps}
    for sample in samples:
        if sample.value is not None and math.isfinite(sample.value):
            labels = ",".join(f'{key}="{_escape(text)}"' for key, text in sample.labels.items())
            row = f"{sample.name}{{{labels}}}" if labels else sample.name
            found[sample.name].append(f"{row} {_format_number(sample.value)}")
    lines = []
    for name, rows in found.items():
        if rows:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {helps[name]}", f"# TYPE {name} {kind}", *rows]
    return "".join(f"{line}\n" for line in lines)


def _format_number(value: Number) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    plain = clean_text.clean_line(str(text))[:_MAX_LABEL_LENGTH]
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
