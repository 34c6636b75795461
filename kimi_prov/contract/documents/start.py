"""`kimi-prov/start/v1`: how machines started to serve."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Required, WeightsHeldIn


class Start(TypedDict):
    """What kimi-prov start has started.

    A host that failed has only ok and detail; for a folder of a cluster there is one row, with the
    service's name.
    """

    schema: Literal["kimi-prov/start/v1"]
    ok: bool
    hosts: dict[str, StartedHost]


class StartedHost(TypedDict, total=False):
    """How one host started."""

    ok: Required[bool]
    detail: Required[str]
    was: Literal["serving", "stopped", "asleep", "not serving"] | None
    """Its state before."""
    seconds: float | None
    """From the request for the start until the model answered; for a host that serves already, its
    last start."""
    held: WeightsHeldIn | None
    """Where the weights were when the start began."""
