"""`kimi-prov/diagnose-log/v1`: what the lines of logs tell."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Rule


class DiagnoseLog(TypedDict):
    """Causes that were recognised in logs, the surest first."""

    schema: Literal["kimi-prov/diagnose-log/v1"]
    findings: list[LogFinding]
    harmless: list[HarmlessLines]
    first_error: LogEvidence | None
    """Where no cause was recognised: the first line that says that something went wrong."""


class LogFinding(TypedDict):
    """A trouble that nothing else in the logs explains."""

    id: Annotated[str, Rule(pattern=r"^diagnose\.[a-z0-9_]+$")]
    title: str
    cause: str
    fix: str
    confidence: Literal["certain", "likely", "possible"]
    evidence: list[LogEvidence]
    followed_by: list[str]
    """Ids of troubles that this one brought."""


class HarmlessLines(TypedDict):
    """Lines that look like a trouble and are none."""

    title: str
    evidence: list[LogEvidence]


class LogEvidence(TypedDict):
    """A line, secrets masked."""

    source: str
    """The file as it was named; of an archive the name inside after a colon; - for standard
    input."""
    line: int
    """From 1, in that file."""
    text: str
