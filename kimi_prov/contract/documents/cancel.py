"""`kimi-prov/cancel/v1`: which jobs of a folder were ended."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import JobId, JobName


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
