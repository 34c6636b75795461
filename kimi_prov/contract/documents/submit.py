"""`kimi-prov/submit/v1`: which jobs of a folder were submitted."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import JobId, JobName


class Submit(TypedDict):
    """What `submit` did with each job of a folder."""

    schema: Literal["kimi-prov/submit/v1"]
    folder: str
    """The folder, on the cluster."""
    jobs: list[SubmittedJob]


class SubmittedJob(TypedDict):
    """A job of the folder."""

    name: JobName
    id: JobId | None
    after: list[JobId]
    """Jobs that have to succeed before."""
    outcome: Literal["submitted", "queued", "complete"]
    """queued: it waits or runs already; complete: its work is done."""
