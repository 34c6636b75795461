"""What keys used as Prometheus metrics: sums since the counter's first day."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_NAMES = (
    ("kimi_usage_requests_total", "requests", "Requests that a key began"),
    ("kimi_usage_prompt_tokens_total", "prompt_tokens", "Prompt tokens of a key"),
    ("kimi_usage_completion_tokens_total", "completion_tokens", "Completion tokens of a key"),
)
_REFUSED = "kimi_usage_refused_total"


def render_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of all days together, one a key, as metrics."""
    lines = []
    for name, column, told in _NAMES:
        lines += [f"# HELP {name} {told}", f"# TYPE {name} counter"]
        lines += [f'{name}{{key="{_escape_label(row["key"])}"}} {row[column]}' for row in rows]
    lines += [f"# HELP {_REFUSED} Requests that a limit kept out", f"# TYPE {_REFUSED} counter"]
    lines += [
        f'{_REFUSED}{{key="{_escape_label(row["key"])}",reason="{_escape_label(reason)}"}} {times}'
        for row in rows
        for reason, times in sorted(row["refused"].items())
    ]
    return "\n".join(lines) + "\n"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write(path: Path, rows: Sequence[Mapping[str, Any]], more: str = "") -> None:
    """Replace the file in one step, readable by the metrics collector; `more`: other metrics."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(render_rows(rows) + more, encoding="utf-8")
    beside.chmod(0o644)
    os.replace(str(beside), str(path))
