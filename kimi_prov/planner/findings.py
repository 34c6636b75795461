"""Findings: what was observed, what is required, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["blocker", "warning", "info", "pass"]
ORDER: tuple[Severity, ...] = ("blocker", "warning", "info", "pass")


class Finding(TypedDict):
    """One finding. `id` is stable: others script against it.

    `cost_usd`: what mending costs, where known, and `cost_basis`: how that was reckoned.
    """

    id: str
    severity: Severity
    title: str
    observed: object
    required: object
    fix: str | None
    source: str
    cost_usd: NotRequired[float]
    cost_basis: NotRequired[str]


class Findings:
    """Collects findings while a plan is made."""

    def __init__(self) -> None:
        self._rows: list[Finding] = []

    def blocker(
        self,
        identity: str,
        title: str,
        *,
        observed: object,
        required: object,
        fix: str,
        source: str,
    ) -> None:
        """Say what forbids to go on."""
        self._add("blocker", identity, title, (observed, required, fix, source))

    def warning(
        self,
        identity: str,
        title: str,
        *,
        observed: object,
        required: object,
        fix: str,
        source: str,
    ) -> None:
        """Say what will probably hurt."""
        self._add("warning", identity, title, (observed, required, fix, source))

    def info(
        self,
        identity: str,
        title: str,
        *,
        observed: object,
        required: object,
        source: str,
        fix: str | None = None,
    ) -> None:
        """Say what was decided or assumed."""
        self._add("info", identity, title, (observed, required, fix, source))

    def passed(
        self, identity: str, title: str, *, observed: object, required: object, source: str
    ) -> None:
        """Say what was looked at and is good."""
        self._add("pass", identity, title, (observed, required, None, source))

    def extend(self, rows: Iterable[Finding]) -> None:
        """Take findings that rules made."""
        self._rows.extend(rows)

    def rows(self) -> list[Finding]:
        """All of them, the gravest first; within a severity in the order they were found."""
        return sorted(self._rows, key=lambda row: ORDER.index(row["severity"]))

    def _add(
        self,
        severity: Severity,
        identity: str,
        title: str,
        rest: tuple[object, object, str | None, str],
    ) -> None:
        observed, required, fix, source = rest
        self._rows.append(
            Finding(
                id=identity,
                severity=severity,
                title=title,
                observed=observed,
                required=required,
                fix=fix,
                source=source,
            )
        )
