"""Status: a gateway."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Required
from kimi_prov.contract.documents.status.host import (
    AppliedStatus,
    CertificateStatus,
    DriftStatus,
    UpdatesStatus,
    WebUiStatus,
)


class GatewayState(TypedDict, total=False):
    """A gateway, as it reports itself."""

    ok: Required[bool]
    provisioned: Required[Literal[True]]
    detail: Required[str]
    gateway: Required[GatewayStatus]
    web: WebUiStatus | None
    applied: AppliedStatus | None
    drift: DriftStatus | None
    updates: UpdatesStatus | None
    updates_error: str | None
    """Why the waiting updates are unknown: apt failed, or did not answer in 30 s."""


class GatewayHostStatus(GatewayState):
    """A gateway."""

    stand_ins: list[str]


class GatewayStatus(TypedDict):
    """A host that answers for the machines behind it."""

    address: str | None
    """The address that gateways share: kimi_gateway_address."""
    has_address: bool | None
    """Whether this gateway has it now."""
    peers: list[str]
    """The other gateways."""
    hosts: list[HostBehind]
    warnings: NotRequired[list[str]]
    """Certificates of machines that end soon, and clocks that differ."""
    units: dict[str, str | None]
    port: int
    listening: list[str]
    """Who may connect: any, or loopback."""
    allowed_networks: list[str]
    guarded: bool
    """Whether the table of the packet filter is loaded."""
    certificate_sha256: str
    certificate: CertificateStatus
    keys: list[str]
    key_not_shown_yet: bool
    uptime_seconds: float


class HostBehind(TypedDict):
    """A host behind the gateway."""

    host: str
    address: str
    port: int
    state: str
    """As HAProxy sees it: up, down, drain, maint; unknown where it does not answer."""
    requests: int
    """Under way there from this gateway."""
    requests_at_once: int
    """More wait at the gateway."""
