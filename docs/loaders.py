"""The page of how fast weights came into real cards, from what the loaders' benchmark printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from markup import table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = ("loader", "from", "GB/s", "seconds", "phases, s", "memory, GiB", "note")


def lines(folder: Path) -> Iterator[str]:
    """Give each machine's runs as tables."""
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text())
        for run in document["runs"]:
            yield from ("", f"## {run['title']}", "")
            yield f"On {document['gpu']}, {document['date']}. {run['about']}"
            yield ""
            yield from table(HEAD, map(_list_cells, run["rows"]))


def _list_cells(row: dict[str, Any]) -> tuple[str, ...]:
    seconds, size = row["seconds"], row["gb"]
    rate = f"{size / seconds:.1f}" if seconds and size else ""
    phases, memory = (
        ", ".join(f"{name} {value:.{digits}f}" for name, value in row[key].items())
        for key, digits in (("phases", 1), ("memory", 0))
    )
    took = f"{seconds:.2f}" if seconds else ""
    return row["loader"], row["source"], rate, took, phases, memory, row["note"]
