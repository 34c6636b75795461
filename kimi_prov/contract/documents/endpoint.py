"""`kimi-prov/endpoint/v1`: where a job of a SLURM cluster serves."""

from __future__ import annotations

from typing import Literal, TypedDict


class Endpoint(TypedDict):
    """Where a job of a SLURM cluster serves."""

    schema: Literal["kimi-prov/endpoint/v1"]
    url: str
    """Base URL that an OpenAI client takes."""
    node: str
    """Node that answers."""
    nodes: list[str]
    """All nodes of the job, the head first."""
    job: str
    """Number of the job."""
    folder: str
    """The rendered folder that the job was submitted from."""
    model: str
    """Name to ask for."""
    certificate: str
    """The server's certificate, PEM."""
    key_file: str
    """File of the API key, for its owner alone."""
    state: Literal["loading", "ready", "draining", "ended", "failed"]
    ends_at: str | None
    """End of the walltime, UTC, ISO 8601; null where it is not known."""
    successor: str | None
    """Job that takes over; null where there is none."""
    notes: list[str]
    """What is not as it was planned, in sentences."""
