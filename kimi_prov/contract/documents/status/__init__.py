"""`kimi-prov/status/v1`: what runs on machines."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.status.gateway import GatewayHostStatus
from kimi_prov.contract.documents.status.kubernetes import KubernetesStatus
from kimi_prov.contract.documents.status.machine import MachineStatus
from kimi_prov.contract.documents.status.monitor import MonitorHostStatus


class Status(TypedDict):
    """What runs on each machine."""

    schema: Literal["kimi-prov/status/v1"]
    ok: bool
    hosts: dict[
        str,
        KubernetesStatus | GatewayHostStatus | MonitorHostStatus | NotProvisioned | MachineStatus,
    ]


class NotProvisioned(TypedDict):
    """A host that was not provisioned, or not reached."""

    ok: Literal[False]
    provisioned: Literal[False]
    detail: str
    stand_ins: list[str]
