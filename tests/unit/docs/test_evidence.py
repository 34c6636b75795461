"""The page of evidence: a claim has a test that exists and a run, or says that it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import evidence
import pytest
import yaml

if TYPE_CHECKING:
    from pathlib import Path

RUNS = [
    {
        "command": "make test",
        "date": "2026-11-01",
        "commit": "a",
        "covers": ["tests/unit"],
        "result": "-",
    },
    {
        "command": "make test",
        "date": "2026-11-20",
        "commit": "b",
        "covers": ["tests/lab"],
        "result": "-",
    },
    {
        "command": "make test-slow",
        "date": "2026-11-10",
        "commit": "c",
        "covers": ["tests"],
        "result": "-",
    },
    {"command": "make gpu", "name": "H100", "date": "2026-11-05", "commit": "d", "result": "-"},
]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for path, text in {
        "tests/unit/test_one.py": "def test_a() -> None: ...\n",
        "tests/lab/test_two.py": "@pytest.mark.slow\ndef test_b(): ...\ndef test_c(): ...\n",
        "tests/lab/test_three.py": "pytestmark = [pytest.mark.lab, pytest.mark.slow]\n",
        "tests/gpu/test_four.py": "",
        "docs/data/runs.yaml": yaml.safe_dump({"runs": RUNS}),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def claims(house: Path, *rows: dict[str, Any]) -> list[evidence.Claim]:
    section = {
        "title": "All",
        "short": "All of it.",
        "claims": [{"claim": "So it is.", **r} for r in rows],
    }
    (house / "docs/data/claims.yaml").write_text(yaml.safe_dump({"sections": [section]}))
    return [claim for section in evidence.sections(house) for claim in section.claims]


@pytest.mark.parametrize(
    ("row", "proofs"),
    [
        ({"tests": "tests/unit/test_one.py"}, (("make test", "2026-11-01"),)),
        ({"tests": "tests/lab/test_two.py::test_b"}, (("make test-slow", "2026-11-10"),)),
        ({"tests": "tests/lab/test_two.py::test_c"}, (("make test", "2026-11-20"),)),
        ({"tests": "tests/lab/test_three.py"}, (("make test-slow", "2026-11-10"),)),
        (
            {
                "tests": "tests/lab/test_three.py tests/lab/test_two.py::test_c "
                "tests/unit/test_one.py"
            },
            (("make test", "2026-11-01"), ("make test-slow", "2026-11-10")),
        ),
        ({"tests": "tests/gpu/test_four.py", "run": "H100"}, (("make gpu", "2026-11-05"),)),
        ({"run": "by hand 2026-11-03"}, (("by hand", "2026-11-03"),)),
        ({"run": "never"}, ()),
    ],
)
def test_the_last_run_of_a_claim_is_that_of_its_tests(
    house: Path, row: dict[str, Any], proofs: tuple[tuple[str, str], ...]
) -> None:
    assert claims(house, row)[0].proofs == proofs


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"tests": "tests/unit/test_gone.py"},
            r"So it is\. tests/unit/test_gone\.py does not exist",
        ),
        ({"tests": "tests/unit/test_one.py::test_z"}, r"test_one\.py::test_z does not exist"),
        (
            {"tests": "tests/gpu/test_four.py"},
            r"no run of make test covers tests/gpu/test_four\.py",
        ),
        ({"run": "H300"}, r"runs\.yaml has no run H300"),
        ({}, r"names no test and no run"),
    ],
)
def test_a_claim_that_nothing_proves_is_refused(
    house: Path, row: dict[str, Any], said: str
) -> None:
    with pytest.raises(evidence.EvidenceError, match=said):
        claims(house, row)


def test_the_page_begins_with_what_is_proven_in_short_and_names_what_is_not(house: Path) -> None:
    tests = {"tests": "tests/unit/test_one.py", "note": "a stand-in"}
    claims(house, tests, {"run": "never", "claim": "On the moon."})
    lines = evidence.lines(house)
    assert lines[3] == "| [All](#all): All of it. | `make test` | 2026-11-01 |"
    assert "- On the moon." in lines
    row = "| So it is. | `tests/unit/test_one.py`; a stand-in | `make test` 2026-11-01 |"
    assert row in lines
    assert not [line for line in lines if line.startswith("| On the moon")]
