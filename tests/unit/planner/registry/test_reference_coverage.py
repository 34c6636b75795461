"""Each problem and caveat of the reference documents, one by one: a rule, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_prov.packaging import lock_files
from kimi_prov.planner.registry import DEFINITIONS

ROOT = Path(__file__).resolve().parents[3]
ROWS = yaml.safe_load((ROOT / "data" / "reference_coverage.yaml").read_text())["coverage"]
# Entries under "Troubleshooting", "Common Issues" and "Known caveats" in each document, counted
# there; more rows (flags, limits) may be listed for a document than it has such entries.
LEAST = {"000": 5, "001": 4, "002": 10, "003": 3, "004": 8, "004 notes": 12}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['reference']}: {row['entry']}" for row in ROWS])
def test_an_entry_is_covered(row: dict[str, Any]) -> None:
    assert set(row["rules"]) <= set(DEFINITIONS)
    assert row["rules"] or row["reason"]
    assert not (row["rules"] and row.get("reason"))
    # An unquoted comma in the file would cut a sentence and make a key of its rest.
    assert set(row) <= {"reference", "entry", "rules", "also", "reason", "proven"}
    assert ("also" in row) == ("proven" in row)


def test_what_is_called_proven_names_a_test() -> None:
    for named in {row["proven"] for row in ROWS if "proven" in row} - {"nothing"}:
        path, _, test = named.partition("::")
        assert f"def {test or 'test_'}" in (ROOT.parent / path).read_text(), named


def test_each_cuda_lock_pins_torch_and_nccl() -> None:
    for lock in (ROOT.parent / "kimi_prov" / "catalog" / "locks").glob("*-cuda-*.txt"):
        names = {pin.name for pin in lock_files.read_pins(lock.read_text())}
        assert "torch" in names, lock.name
        assert {"nvidia-nccl-cu12", "nvidia-nccl-cu13"} & names, lock.name


@pytest.mark.parametrize("number", range(1, 13))
def test_each_of_the_twelve_troubles_is_named(number: int) -> None:
    own = [row for row in ROWS if row["reference"] == "004 notes"]
    assert sum(row["entry"].startswith(f"{number}:") for row in own) == 1


def test_every_document_is_gone_through() -> None:
    for reference, least in LEAST.items():
        assert sum(row["reference"] == reference for row in ROWS) >= least
