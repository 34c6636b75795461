"""Logs of public reports: each is told the cause that a person who read the report would tell."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.on_host.troubles.causes import find_causes
from kimi_prov.on_host.troubles.scan import Patterns, Scanner


class Report(TypedDict):
    """A log, where it was reported, and the rows that tell it."""

    report: str
    causes: list[str]
    log: str


FILE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "logs" / "reports.yaml"
REPORTS: list[Report] = yaml.safe_load(FILE.read_text())


@pytest.fixture(scope="module")
def patterns() -> Patterns:
    return Patterns(load_catalogue().troubles)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["report"])
def test_a_reported_log_is_told_its_cause(report: Report, patterns: Patterns) -> None:
    scanner = Scanner(patterns)
    scanner.begin("log")
    for line in report["log"].splitlines():
        scanner.read(line.encode())
    causes = [cause.hit.row.id for cause in find_causes(scanner).causes]
    assert causes == report["causes"]
