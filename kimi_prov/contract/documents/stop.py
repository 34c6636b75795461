"""`kimi-prov/stop/v1`: how machines stopped serving."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired


class Stop(TypedDict):
    """What kimi-prov stop has stopped.

    A host that failed has only ok and detail; for a folder of a cluster there is one row, with the
    service's name.
    """

    schema: Literal["kimi-prov/stop/v1"]
    ok: bool
    hosts: dict[str, StoppedHost]


class StoppedHost(TypedDict):
    """How one host stopped."""

    ok: bool
    detail: str
    requests_cut: NotRequired[int | None]
    """Answers that did not end in time; null for a cluster's."""
    seconds: NotRequired[float | None]
    """Seconds of the drain and of the engine's end."""
