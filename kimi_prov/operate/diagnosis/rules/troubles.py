"""Troubles that the logs of one machine show, as findings: the same rows as for any log.

Decides: what `diagnose` recognises (in the logs of a machine).
Held by: tests/unit/operate/test_diagnosis_rules.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.on_host.system import journals
from kimi_prov.on_host.troubles.causes import find_causes
from kimi_prov.on_host.troubles.scan import Patterns, Scanner
from kimi_prov.operate.diagnosis import log_answer
from kimi_prov.operate.diagnosis.evidence import Hit
from kimi_prov.operate.diagnosis.rules.registry import EVERYWHERE, choose_severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.catalog.troubles import TroubleRow
    from kimi_prov.contract.documents.diagnose import Diagnosis
    from kimi_prov.on_host.troubles.causes import Cause
    from kimi_prov.operate.diagnosis.evidence import Evidence
    from kimi_prov.operate.diagnosis.rules.registry import Now
    from kimi_prov.runner.progress import LogEntry

    # The lines of each journal, in order, with the entry that each belongs to.
    Lines = Mapping[str, list[tuple[LogEntry, str]]]


def find_troubles(evidence: Evidence, rows: Iterable[TroubleRow]) -> list[Diagnosis]:
    """Return what the rows recognise in a machine's journals."""
    sources = {row.id: format_dated_source(row) for row in rows}
    scanner, lines = Scanner(Patterns(rows)), _split_lines(evidence)
    for unit, part in lines.items():
        scanner.begin(unit)
        for entry, line in part:
            scanner.read(_format_line(entry, line).encode())
    return [
        _build_finding(cause, evidence, lines, sources[cause.hit.row.id])
        for cause in find_causes(scanner).causes
        # A whole machine's journals have many refusals that are nobody's trouble.
        if cause.hit.row.kind != "general"
    ]


def _split_lines(evidence: Evidence) -> Lines:
    journals_of_units = {**evidence.logs, journals.KERNEL: evidence.kernel}
    return {
        unit: [(entry, line) for entry in entries for line in entry.message.splitlines()]
        for unit, entries in journals_of_units.items()
    }


def _format_line(entry: LogEntry, line: str) -> str:
    at = datetime.fromtimestamp(entry.time_us / 1e6, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ} {line}" if entry.time_us else line


def _build_finding(cause: Cause, evidence: Evidence, lines: Lines, source: str) -> Diagnosis:
    last = cause.hit.occurrences[-1]
    entry = lines[last.source][last.line - 1][0]
    hit = Hit(entry, cause.hit.count, evidence.is_over(entry))
    known = log_answer.build_finding(cause, str)
    return {
        "id": known["id"],
        "severity": _choose_severity(evidence, hit, cause),
        "title": known["title"],
        "observed": hit.observed,
        "required": EVERYWHERE,
        "fix": known["fix"],
        "source": source,
        "concerns": "deployment",
        "cause": known["cause"],
        "confidence": known["confidence"],
        "evidence": known["evidence"],
        "followed_by": known["followed_by"],
    }


def _choose_severity(evidence: Evidence, hit: Hit, cause: Cause) -> Now:
    """Return how severe it is now; what ends nothing does not keep the model from serving."""
    severity = choose_severity(evidence, hit)
    return "warning" if severity == "blocker" and not cause.hit.row.leads_to else severity
