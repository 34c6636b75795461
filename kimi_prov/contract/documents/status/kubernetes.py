"""Status: a folder for Kubernetes."""

from __future__ import annotations

from typing import Literal, TypedDict


class KubernetesStatus(TypedDict):
    """A folder for Kubernetes that was applied."""

    ok: bool
    provisioned: Literal[True]
    state: Literal["serving", "starting", "stopped", "failed"]
    detail: str
    fix: str | None
    stand_ins: list[str]
    kubernetes: KubernetesService


class KubernetesService(TypedDict):
    """What runs in the cluster."""

    context: str
    """kubectl's context."""
    namespace: str
    kind: Literal["StatefulSet", "LeaderWorkerSet"]
    name: str
    replicas: int
    """Wanted replicas; 0 is stopped on purpose."""
    ready: int
    since_seconds: float | None
    """How long it has answered."""
    plan_current: bool
    """Whether the folder's plan is the one that was applied."""
    endpoints: list[str]
    """Base URLs: inside the cluster, then by its ingress."""
    fetch: FetchJob | None
    pods: list[PodStatus]


class PodStatus(TypedDict):
    """A pod."""

    name: str
    phase: str
    reason: str | None
    """Why a container waits."""
    ready: bool
    node: str | None
    restarts: int
    uptime_seconds: float | None


class FetchJob(TypedDict):
    """The job that fetches the weights."""

    job: str
    state: Literal["complete", "fetching", "failed"]
    detail: str
