"""The page of what was proven on real GPUs, from the reports of `make gpu` that were kept.

A report is NAME/report.json; NAME/note.yaml beside it says what was served, on what, and what stood
in. A test that ran several times counts by its last run; one that was not reached did not run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import yaml
from markup import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# How a test that the machine's time did not suffice for ends.
_NOT_RUN = "Failed: not run"


@dataclass(frozen=True)
class Report:
    """One run on a machine with GPUs; `served` is what its tests are about."""

    name: str
    served: str
    title: str
    date: str
    commit: str
    cards: str
    engine: str
    apply_s: str
    tests: Sequence[dict[str, Any]]

    @property
    def passed(self) -> str:
        """How many claims of the report passed."""
        outcomes = Counter(row["outcome"] for row in self.tests)
        return f"{outcomes['passed']} of {len(self.tests)}"


@dataclass(frozen=True)
class Outcome:
    """The last run of one test."""

    report: Report
    claim: str
    outcome: str
    seconds: str
    reason: str


def reports(folder: Path) -> list[Report]:
    """Return the reports in `folder`, the newest first."""
    found = [_read(file.parent) for file in sorted(folder.glob("*/report.json"), reverse=True)]
    return sorted(found, key=lambda report: report.date, reverse=True)


def _read(folder: Path) -> Report:
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    note = yaml.safe_load((folder / "note.yaml").read_text(encoding="utf-8"))
    figures, cards = report["figures"], report["cards"]
    on_processors = "kimi-kt-experts" in figures.get("engine", "")
    name = report.get("processor", {}).get("name", "") if on_processors else cards[0]["name"]
    return Report(
        name=folder.name,
        served=note["served"],
        title=note["title"],
        date=report["date"],
        commit=note["commit"],
        cards=name if on_processors else f"{len(cards)}x {name.removeprefix('NVIDIA ')}",
        engine=figures.get("engine", "none"),
        apply_s=str(figures.get("apply_s", "")),
        tests=report["tests"],
    )


def last_outcomes(found: Sequence[Report]) -> list[Outcome]:
    """Return the last outcome of each test, sorted by what was served."""
    last: dict[tuple[str, str], Outcome] = {}
    for report in found:
        for row in report.tests:
            if row.get("reason", "").startswith(_NOT_RUN):
                continue
            outcome = Outcome(
                report, row["claim"], row["outcome"], str(row["seconds"]), row.get("reason", "")
            )
            last.setdefault((report.served, row["test"]), outcome)
    return sorted(last.values(), key=lambda outcome: outcome.report.served)


def lines(folder: Path) -> list[str]:
    """Return the page's lines: in short, what failed, the reports, and each claim."""
    found = reports(folder)
    return [*_short(found), *_failed(found), *_table_of_reports(found), *_claims(found)]


def _short(found: Sequence[Report]) -> Iterator[str]:
    rows = []
    for served, group in groupby(last_outcomes(found), key=lambda outcome: outcome.report.served):
        outcomes = list(group)
        passed = sum(outcome.outcome == "passed" for outcome in outcomes)
        ours = [report for report in found if report.served == served]
        cards = ", ".join(dict.fromkeys(report.cards for report in ours))
        engines = ", ".join(dict.fromkeys(report.engine for report in ours))
        dates = " to ".join(dict.fromkeys((ours[-1].date, ours[0].date)))
        rows.append((served, cards, engines, f"{passed} of {len(outcomes)}", dates))
    yield ""
    yield from table(("what is served", "on", "engine", "claims that passed", "runs"), rows)


def _failed(found: Sequence[Report]) -> Iterator[str]:
    outcomes = [outcome for outcome in last_outcomes(found) if outcome.outcome != "passed"]
    if outcomes:
        yield from ("", "## What did not pass in its last run", "")
    for outcome in outcomes:
        where = f"{outcome.report.served}, {outcome.report.date}"
        yield f"- {outcome.claim} ({where}): {' '.join(outcome.reason.split())}"


def _table_of_reports(found: Sequence[Report]) -> Iterator[str]:
    yield from ("", "## Reports", "")
    rows = (
        (r.date, r.title, r.cards, r.engine, r.passed, r.apply_s, r.commit, f"`{r.name}`")
        for r in found
    )
    head = ("date", "what was run", "on", "engine", "passed", "`apply`, s", "commit", "folder")
    yield from table(head, rows)


def _claims(found: Sequence[Report]) -> Iterator[str]:
    for served, group in groupby(last_outcomes(found), key=lambda outcome: outcome.report.served):
        yield from ("", f"## {served}", "")
        rows = ((o.claim, o.outcome, o.seconds, f"`{o.report.name}`") for o in group)
        yield from table(("claim", "last run", "s", "report"), rows)
