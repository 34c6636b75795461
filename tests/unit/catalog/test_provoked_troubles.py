"""Logs of troubles that were provoked on real machines: each is told its cause and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_line import run

FOLDER = Path(__file__).resolve().parents[2] / "data" / "recordings" / "logs"
EXPECTED = {
    file.parent / f"{name}.log": causes
    for file in sorted(FOLDER.glob("*/expected.yaml"))
    for name, causes in yaml.safe_load(file.read_text()).items()
}


@pytest.mark.parametrize("log", EXPECTED, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_a_provoked_trouble_is_told(log: Path) -> None:
    done = run("diagnose", "--log", log, "--format", "json")
    causes = [finding["id"] for finding in json.loads(done.stdout)["findings"]]
    assert causes == EXPECTED[log]
    assert done.returncode == (1 if causes else 0)


def test_every_log_has_what_is_expected_of_it() -> None:
    assert sorted(EXPECTED) == sorted(FOLDER.glob("*/*.log"))
