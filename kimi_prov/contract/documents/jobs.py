"""`kimi-prov/jobs/v1` and `kimi-prov/cancel/v1`: the jobs of a rendered folder."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import JobId, JobName


class Jobs(TypedDict):
    """The jobs of a folder that `render slurm` made, and where its servers answer."""

    schema: Literal["kimi-prov/jobs/v1"]
    folder: str
    """The folder, on the cluster."""
    root: str
    """KIMI_ROOT."""
    jobs: list[Job]
    """The newest first."""


class Job(TypedDict):
    """A job of the folder."""

    id: JobId
    name: JobName | None
    """Which of the folder's jobs; null for one that somebody added."""
    job_name: str
    """SLURM's name of it."""
    state: str | None
    """SLURM's state: PENDING, RUNNING, ...; null where it no longer knows the job."""
    reason: str | None
    """Why it waits or has ended."""
    nodes: str | None
    """Its nodes, as SLURM writes them."""
    starts_at: str | None
    """UTC, ISO 8601; for a job that waits, SLURM's estimate."""
    ends_at: str | None
    """End of the walltime, or of the job; UTC, ISO 8601."""
    left_s: int | None
    """Seconds left of the walltime."""
    log: str | None
    """Its output, in the folder; null where there is none."""
    endpoint: EndpointOfJob | None


class EndpointOfJob(TypedDict):
    """The address of its server."""

    state: Literal["loading", "ready", "draining", "ended", "failed", "lost"]
    """lost: its file says that it is open, but SLURM says that its job is not."""
    url: str
    """Base URL on the cluster."""
    node: str
    model: str
    certificate_sha256: str | None
    """Fingerprint of the server's certificate."""
    successor: JobId | None
    notes: list[str]
    file: str
    """The endpoint's file."""


class Cancel(TypedDict):
    """What `cancel` did with each job of a folder."""

    schema: Literal["kimi-prov/cancel/v1"]
    folder: str
    """The folder, on the cluster."""
    jobs: list[CancelledJob]


class CancelledJob(TypedDict):
    """A job of the folder."""

    id: JobId
    name: JobName | None
    outcome: Literal["ending", "cancelled"]
    """ending: a server that lets answers end; cancelled: by scancel."""
