"""Logs of troubles that were provoked on a real machine: each is told its cause and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_line import run

FOLDER = Path(__file__).resolve().parents[2] / "data" / "recordings" / "logs" / "h200"
EXPECTED = yaml.safe_load((FOLDER / "expected.yaml").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_provoked_trouble_is_told(name: str) -> None:
    done = run("diagnose", "--log", FOLDER / f"{name}.log", "--format", "json")
    causes = [finding["id"] for finding in json.loads(done.stdout)["findings"]]
    assert causes == EXPECTED[name]
    assert done.returncode == (1 if causes else 0)


def test_every_log_has_what_is_expected_of_it() -> None:
    assert sorted(EXPECTED) == sorted(file.stem for file in FOLDER.glob("*.log"))
