"""The result of a check: passed, failed with what was expected and what came, or not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_CUT = 200
Row = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """`status`: ok, fail or skip. A failure says what was expected and what came instead."""

    status: str
    detail: str
    expected: str = ""
    observed: str = ""

    def row(self, name: str, seconds: float) -> Row:
        """Return the check's row of a verify document."""
        found: Row = {"name": name, "status": self.status, "detail": self.detail}
        if self.status == "fail":
            found |= {"expected": self.expected, "observed": self.observed}
        return {**found, "seconds": round(seconds, 3)}


@dataclass(frozen=True)
class Wrong:
    """One question of several whose answer was wrong."""

    question: str
    expected: str
    observed: str


def make_pass(detail: str) -> Verdict:
    """Return a check that passed."""
    return Verdict("ok", format_text(detail))


def make_failure(detail: str, expected: str, observed: str) -> Verdict:
    """Return a check that failed; what came may be of any length and have any content."""
    return Verdict("fail", format_text(detail), format_text(expected), format_text(observed))


def make_skip(reason: str) -> Verdict:
    """Return a check that was not run, which is no pass."""
    return Verdict("skip", format_text(reason))


def judge_answers(total: int, wrong: Sequence[Wrong], what: str, *, allowed: int = 0) -> Verdict:
    """Check a set of questions: the first wrong answer is reported in full, the others are counted.

    `allowed`: so many wrong answers are no failure.
    """
    count = f"{total - len(wrong)} of {total} {what}"
    if len(wrong) <= allowed:
        return make_pass(count if not wrong else f"{count}; {_format_wrong(wrong)}")
    first = wrong[0]
    return make_failure(f"{count}; {_format_wrong(wrong)}", first.expected, first.observed)


def _format_wrong(wrong: Sequence[Wrong]) -> str:
    return "; ".join(
        f"{format_text(item.question, 80)} -> {format_text(item.observed, 80)}" for item in wrong
    )


def format_text(text: object, limit: int = _CUT) -> str:
    """Return clean text on one line; cut a long one in its middle: its end matters too."""
    flat = clean_text.clean_line(text)
    if len(flat) <= limit:
        return flat
    half = (limit - 3) // 2
    return f"{flat[:half]}...{flat[-half:]}"


def list_names(rows: Sequence[Row], status: str) -> list[str]:
    """Return the names of the rows with this status."""
    return [str(row["name"]) for row in rows if row["status"] == status]
