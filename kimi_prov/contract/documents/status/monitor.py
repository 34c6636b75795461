"""Status: metrics, and a host that monitors others."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Timestamp


class MonitorState(TypedDict):
    """A host that monitors others and does not serve, as it reports itself."""

    ok: bool
    provisioned: Literal[True]
    detail: str
    monitor: MonitorStatus


class MonitorHostStatus(MonitorState):
    """A host that monitors others and does not serve."""

    stand_ins: list[str]


class MonitorStatus(TypedDict):
    """Prometheus and Alertmanager on this machine."""

    prometheus: str | None
    """systemd's state of it."""
    alertmanager: str | None
    """systemd's state of it."""
    answers: bool
    """Whether Prometheus reported the values below."""
    listen: str
    port: int
    targets: int
    targets_down: int
    down: list[TargetDown]
    """The first 50 of them."""
    alerts_firing: int
    alerts: list[FiringAlert]
    """The first 50 of them, the oldest first."""
    series_bytes: int
    """Bytes of disk that Prometheus' series take."""
    series_limit_bytes: int | None
    """monitor_retention_bytes; null where an earlier version made it."""


class TargetDown(TypedDict):
    """A target that does not answer."""

    host: str
    job: str
    engine: str
    """Its instance; empty for the other jobs."""


class FiringAlert(TypedDict):
    """An alert that fires."""

    name: str
    host: str
    severity: str
    summary: str
    since: Timestamp


class MetricsStatus(TypedDict):
    """Where metrics are read; null where there are none."""

    port: int
    allowed_networks: list[str]
    listening: list[str]
    """Addresses on which it is open."""
    node_exporter: str | None
    """systemd's state of it."""
    timer: str | None
    """systemd's state of it."""
    written_at: Timestamp | None
    monitor: MonitorStatus | None
