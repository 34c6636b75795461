"""The answer to logs: causes, what followed, harmless lines, or the first error.

Decides: what `diagnose` recognises (the answer of --log).
Held by: tests/unit/commands/test_diagnose_logs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.on_host.troubles.causes import find_causes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.contract.documents.diagnose_log import DiagnoseLog, LogEvidence, LogFinding
    from kimi_prov.on_host.troubles.causes import Cause
    from kimi_prov.on_host.troubles.scan import Occurrence, Scanner

# Lines that are quoted of one trouble.
_QUOTED = 5


@dataclass(frozen=True)
class LogAnswer:
    """The document, and what its text has beside it.

    `followed`: what followed from causes, by id: title and first line. `around`: the lines around
    the first error, that line included.
    """

    document: DiagnoseLog
    followed: dict[str, str]
    around: list[str]


def build_answer(scanner: Scanner, mask: Callable[[str], str]) -> LogAnswer:
    """Return the answer about what was read; quoted lines are masked."""
    diagnosis = find_causes(scanner)
    known = any(cause.hit.row.kind != "consequence" for cause in diagnosis.causes)
    error = None if known else scanner.first_error
    around = [*error.before, error.line.text, *error.after] if error else []
    document: DiagnoseLog = {
        "schema": "kimi-prov/diagnose-log/v1",
        "findings": [build_finding(cause, mask) for cause in diagnosis.causes],
        "harmless": [
            {"title": hit.row.title, "evidence": _quote_lines(hit.occurrences[:1], mask)}
            for hit in diagnosis.harmless
        ],
        "first_error": _quote_line(error.line, mask) if error else None,
    }
    followed = {
        hit.row.id: mask(f"{hit.row.title} ({format_position(hit.first[0])})")
        for cause in diagnosis.causes
        for hit in cause.followed_by
    }
    return LogAnswer(document, followed, [mask(line) for line in around])


def build_finding(cause: Cause, mask: Callable[[str], str]) -> LogFinding:
    """Return a cause as a finding."""
    own = sorted([*cause.hit.occurrences, *cause.hit.beside], key=lambda one: one.order)
    return {
        "id": cause.hit.row.id,
        "title": mask(cause.title),
        "cause": mask(cause.cause),
        "fix": mask(cause.fix),
        "confidence": cause.hit.row.confidence,
        "evidence": _quote_lines(own, mask)[:_QUOTED],
        "followed_by": [hit.row.id for hit in cause.followed_by],
    }


def format_position(line: Occurrence) -> str:
    """Return a line's file and number."""
    return f"{line.source}:{line.line}"


def _quote_lines(lines: Iterable[Occurrence], mask: Callable[[str], str]) -> list[LogEvidence]:
    """Return each line once."""
    return [_quote_line(one, mask) for one in {(o.source, o.line): o for o in lines}.values()]


def _quote_line(line: Occurrence, mask: Callable[[str], str]) -> LogEvidence:
    return {"source": line.source, "line": line.line, "text": mask(line.text)}
