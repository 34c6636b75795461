"""`kimi-prov/endpoint/v1`: the address of a job of a SLURM cluster."""

from __future__ import annotations

from typing import Literal, TypedDict


class Endpoint(TypedDict):
    """The address of a job of a SLURM cluster that serves."""

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
    """The rendered folder from which the job was submitted."""
    model: str
    """The model's name in requests."""
    certificate: str
    """The server's certificate, PEM."""
    key_file: str
    """File of the API key, which only its owner may read."""
    state: Literal["loading", "ready", "draining", "ended", "failed"]
    ends_at: str | None
    """End of the walltime, UTC, ISO 8601; null where it is unknown."""
    successor: str | None
    """Job that takes over; null where there is none."""
    notes: list[str]
    """Differences from the plan, in sentences."""
