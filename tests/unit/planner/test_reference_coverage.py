"""Each trouble and caveat of the reference documents, one by one: a rule, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_prov.planner.registry import DEFINITIONS

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "data" / "reference_coverage.yaml").read_text())["coverage"]
# Entries under "Troubleshooting", "Common Issues" and "Known caveats" in each document, counted
# there; more rows (flags, limits) may be listed for a document than it has such entries.
LEAST = {"000": 5, "001": 4, "002": 10, "003": 3, "004": 8, "004 notes": 12}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['reference']}: {row['entry']}" for row in ROWS])
def test_an_entry_is_covered(row: dict[str, Any]) -> None:
    assert set(row["rules"]) <= set(DEFINITIONS)
    assert row["rules"] or row["reason"]
    assert not (row["rules"] and row.get("reason"))


@pytest.mark.parametrize("number", range(1, 13))
def test_each_of_the_twelve_troubles_is_named(number: int) -> None:
    own = [row for row in ROWS if row["reference"] == "004 notes"]
    assert sum(row["entry"].startswith(f"{number}:") for row in own) == 1


def test_every_document_is_gone_through() -> None:
    for reference, least in LEAST.items():
        assert sum(row["reference"] == reference for row in ROWS) >= least
