"""Why something failed, by the last lines that it and the kernel wrote.

Decides: what `diagnose` recognises (what a failure is told with, where it happens).
Held by: tests/unit/on_host/troubles/test_trouble_explain.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kimi_prov.contract.troubles import list_effects
from kimi_prov.on_host.troubles.causes import find_causes
from kimi_prov.on_host.troubles.rows import read_packed_rows
from kimi_prov.on_host.troubles.scan import Patterns, Scanner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.contract.troubles import Confidence, Effect
    from kimi_prov.on_host.troubles.causes import Cause
    from kimi_prov.on_host.troubles.scan import Occurrence

JOURNAL, KERNEL = "journal.log", "kernel.log"


@dataclass(frozen=True)
class Explanation:
    """The surest cause: `title` ends with how sure it is, where the lines do not prove a fault.

    `evidence`: its lines, the first of them is quoted where there is room for one.
    """

    id: str
    title: str
    cause: str
    fix: str
    confidence: Confidence
    evidence: tuple[Occurrence, ...]

    @property
    def line(self) -> str:
        """The line that shows it."""
        return self.evidence[0].text

    def format_lines(self) -> list[str]:
        """Return it as plain lines, for a log that a person reads from its end."""
        return [
            f"cause: {self.title}",
            f"  seen: {self.line}",
            f"  why:  {self.cause}",
            f"  fix:  {self.fix}",
        ]


def explain_lines(
    lines: Iterable[str],
    kernel: Iterable[str] = (),
    *,
    unit: str = "",
    patterns: Patterns | None = None,
) -> Explanation | None:
    """Return the surest cause of a failure; None where no row recognises it.

    `lines`: what the process and systemd wrote, the oldest first. `kernel`: what the kernel wrote
    meanwhile. It may be about others: it counts where it names `unit`, or where something in the
    lines followed from it.
    """
    return explain_files({JOURNAL: lines, KERNEL: kernel}, unit=unit, patterns=patterns)


def explain_files(
    files: Mapping[str, Iterable[str]],
    *,
    unit: str = "",
    seen: Effect | None = None,
    patterns: Patterns | None = None,
) -> Explanation | None:
    """Return the surest cause by several files, of which KERNEL may be about others.

    `seen`: what happened, where no line says it: what may bring it is about the unit.
    """
    scanner = Scanner(patterns or _load_patterns())
    for name, lines in files.items():
        scanner.begin(name)
        for line in lines:
            scanner.read(line.encode("utf-8", "replace"))
    for cause in find_causes(scanner).causes:
        if not cause.over_at_line and not _is_guess(cause) and _is_about(cause, unit, seen):
            return _make_explanation(cause)
    return None


@cache
def _load_patterns() -> Patterns:
    return Patterns(read_packed_rows())


def _is_guess(cause: Cause) -> bool:
    """Whether it only says what happened, and not even that for sure."""
    return cause.hit.row.kind != "fault" and cause.hit.row.confidence == "possible"


def _is_about(cause: Cause, unit: str, seen: Effect | None) -> bool:
    """Whether a cause is told by other lines than the kernel's, or these are about the unit."""
    own = cause.hit.occurrences
    if seen in list_effects(cause.hit.row.leads_to):
        return True
    if any(line.source != KERNEL for line in own) or (unit and any(unit in o.text for o in own)):
        return True
    followed = [line for hit in cause.followed_by for line in hit.occurrences]
    return any(line.source != KERNEL for line in followed)


def _make_explanation(cause: Cause) -> Explanation:
    row = cause.hit.row
    proven = row.confidence == "certain" or row.kind == "symptom"
    return Explanation(
        row.id,
        cause.title if proven else f"{cause.title} ({row.confidence})",
        cause.cause,
        cause.fix,
        row.confidence,
        (*cause.hit.occurrences, *cause.hit.beside),
    )
