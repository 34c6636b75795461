"""`kimi-prov/diagnose/v1`: problems that were recognised on machines."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from kimi_prov.contract.documents.diagnose_log import LogEvidence
from kimi_prov.contract.documents.form import NotRequired, Recorded, Rule


class Diagnose(TypedDict):
    """Recognised problems of machines that serve, and the bundle for a bug report."""

    schema: Literal["kimi-prov/diagnose/v1"]
    ok: bool
    """Whether every host was reached and serves, and no problem prevents that."""
    made_at: str
    """UTC, as 2026-11-24T03:04:05Z."""
    version: str
    """Of kimi-prov on the control machine."""
    bundle: str | None
    """The file that was written; null in the bundle's own copy, and where no host answered."""
    bundle_bytes: int | None
    hosts: dict[str, DiagnosedHost]


class DiagnosedHost(TypedDict):
    """The problems of one host."""

    ok: bool
    reached: bool
    provisioned: bool
    detail: str
    findings: list[Diagnosis]
    missing: dict[str, str]
    """Parts that could not be collected, with the reason."""


class Diagnosis(TypedDict):
    """A problem that was recognised."""

    id: Annotated[str, Rule(pattern=r"^(diagnose|gpu)\.[a-z0-9_]+$")]
    severity: Literal["blocker", "warning", "info"]
    """Prevents the model from serving; was seen while it serves; was over when the engine last
    answered."""
    title: str
    observed: str
    """Unit, time and the line, secrets masked; or the figures."""
    required: str
    fix: str
    source: str
    concerns: Literal["deployment"]
    cause: NotRequired[str]
    """What is wrong and why the lines show it; of a finding of the logs, as are the keys below."""
    confidence: NotRequired[Literal["certain", "likely", "possible"]]
    evidence: NotRequired[list[LogEvidence]]
    """The unit's name is the source, and lines count in what was gathered of its journal."""
    followed_by: NotRequired[list[str]]
    """Ids of troubles that this one brought."""


class DiagnoseAnswer(TypedDict):
    """Parts of a bug report; null for a part that failed."""

    missing: dict[str, str]
    plan: Recorded
    status: dict[str, Any] | None
    units: dict[str, dict[str, str]] | None
    unit_files: str | None
    logs: dict[str, dict[str, Any]] | None
    kernel: dict[str, Any] | None
    metrics: list[dict[str, Any]] | None
    gpus: str | None
    facts: Recorded | None
    configuration: NotRequired[dict[str, str] | None]
    packages: NotRequired[list[str] | None]
    hangs: NotRequired[Any]
