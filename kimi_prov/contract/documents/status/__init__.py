"""`kimi-prov/status/v1`: the state of machines."""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from kimi_prov.contract.documents.status.gateway import GatewayHostStatus, GatewayState
from kimi_prov.contract.documents.status.kubernetes import KubernetesStatus
from kimi_prov.contract.documents.status.machine import MachineAnswer, MachineStatus
from kimi_prov.contract.documents.status.monitor import MonitorHostStatus, MonitorState


class Status(TypedDict):
    """The state of each machine."""

    schema: Literal["kimi-prov/status/v1"]
    ok: bool
    hosts: dict[
        str,
        KubernetesStatus | GatewayHostStatus | MonitorHostStatus | NotProvisioned | MachineStatus,
    ]


class NotServing(TypedDict):
    """A host that was not provisioned, as it reports itself."""

    ok: Literal[False]
    provisioned: Literal[False]
    detail: str


class NotProvisioned(NotServing):
    """A host that was not provisioned, or not reached."""

    stand_ins: list[str]


StatusAnswer = Union[NotServing, GatewayState, MonitorState, MachineAnswer]
