"""Collect the assumptions of all targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import CheckedTarget as Target


def collect_assumptions(targets: Sequence[Target]) -> list[tuple[str, Mapping[str, str]]]:
    """Return every assumption once, with the names of its targets."""
    held: dict[tuple[str, str, str], list[str]] = {}
    for target in targets:
        for row in target["assumptions"]:
            key = (clean(row["what"]), clean(row["value"]), clean(row["source"]))
            held.setdefault(key, []).append(target["name"])
    everybody = len(targets)
    return [
        (
            "all" if len(set(names)) == everybody else ", ".join(map(clean, dict.fromkeys(names))),
            {"what": what, "value": value, "source": source},
        )
        for (what, value, source), names in held.items()
    ]
