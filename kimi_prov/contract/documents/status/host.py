"""Status: the common part of machines and gateways."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Timestamp


class AppliedStatus(TypedDict):
    """What was applied last; null where a version without a history did it."""

    entry: int
    """Its number in kimi-prov history."""
    at: str
    by: AppliedBy | None
    kimi_prov: str | None
    switch: SwitchStatus | None


class AppliedBy(TypedDict):
    """Who applied it."""

    user: NotRequired[str]
    control_host: NotRequired[str]


class SwitchStatus(TypedDict, total=False):
    """A switch to another version that has not ended."""

    entry: int
    phase: Literal["writing", "switching", "returning"]
    under_way: bool


class DriftStatus(TypedDict):
    """The last result of kimi-drift.timer; null without that timer."""

    timer: str
    """systemd's state of it."""
    looked_at: Timestamp | None
    complete: bool | None
    differences: int | None
    findings: dict[str, int]
    """The count of each id."""
    detail: str


class UpdatesStatus(TypedDict):
    """Updates of the operating system that wait, by the present package lists.

    null where apt is not the package manager, or fails (updates_error).
    """

    lists_age_seconds: int | None
    """Seconds since the lists were refreshed."""
    waiting: list[WaitingPackage]
    others: int
    """Packages that wait and are of none of these kinds."""
    restart_reasons: list[str]
    """Why the machine has to restart; empty where it need not."""
    stale_units: list[str]
    """Our units that run libraries that were replaced since they started."""


class FoundUpdates(TypedDict):
    """Updates that wait, or why they are unknown."""

    updates: UpdatesStatus | None
    updates_error: str | None


PackageKind = Literal["security", "kernel", "microcode", "driver"]


class WaitingPackage(TypedDict):
    """A package that waits."""

    name: str
    installed: str
    candidate: str
    kind: PackageKind
    held: bool


class WebUiStatus(TypedDict, total=False):
    """The web UI; null where none is planned."""

    name: str
    version: str | None
    """Of the environment that runs."""
    planned_version: str
    lock: str | None
    environment: str | None
    port: int
    signup: bool
    answers: bool
    data: str
    data_bytes: int
    memory_bytes: int | None
    admin_not_shown_yet: bool


CertificateMode = Literal["self-signed", "files", "acme"]
CertificateState = Literal["ok", "failing", "expiring", "expired", "early", "absent"]


class CertificateJudgement(TypedDict):
    """The state of a certificate."""

    state: CertificateState
    detail: str
    fix: str | None


class CertificateStatus(CertificateJudgement):
    """The certificate of the port."""

    mode: CertificateMode
    names: list[str]
    issuer: str | None
    not_before: str | None
    not_after: str | None
    last_order: LastOrder | None


class LastOrder(TypedDict):
    """The last order by ACME."""

    tried: str
    ok: bool
    kind: str | None
    detail: str | None
    fix: str | None
