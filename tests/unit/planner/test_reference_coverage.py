"""Each trouble and caveat of the reference documents, one by one: a rule, or a reason why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import kimi_prov.planner
from kimi_prov.planner.rules.context import RULES

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "data" / "reference_coverage.yaml").read_text())["coverage"]
SOURCES = Path(kimi_prov.planner.__file__).parent
# Entries under "Troubleshooting", "Common Issues" and "Known caveats" in each document, counted
# there; more rows (flags, limits) may be listed for a document than it has such entries.
LEAST = {"000": 5, "001": 4, "002": 10, "003": 3, "004": 8, "004 notes": 12}


def known() -> set[str]:
    """Ids of every finding that the planner can make."""
    ids = set(RULES)
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        ids |= set(re.findall(r"^\s+\"([a-z_]+\.[a-z_]+)\",$", text, flags=re.MULTILINE))
        ids |= set(re.findall(r"^[A-Z_]+ = \"([a-z_]+\.[a-z_]+)\"$", text, flags=re.MULTILINE))
    return ids


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['reference']}: {row['entry']}" for row in ROWS])
def test_an_entry_is_covered(row: dict[str, Any]) -> None:
    assert set(row["rules"]) <= known()
    assert row["rules"] or row["reason"]
    assert not (row["rules"] and row.get("reason"))


@pytest.mark.parametrize("number", range(1, 13))
def test_each_of_the_twelve_troubles_is_named(number: int) -> None:
    own = [row for row in ROWS if row["reference"] == "004 notes"]
    assert sum(row["entry"].startswith(f"{number}:") for row in own) == 1


def test_every_document_is_gone_through() -> None:
    for reference, least in LEAST.items():
        assert sum(row["reference"] == reference for row in ROWS) >= least
