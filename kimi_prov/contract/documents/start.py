"""`kimi-prov/start/v1`: how machines started to serve."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Required, WeightsHeldIn


class Start(TypedDict):
    """What kimi-prov start has started.

    A host that failed has ok and detail alone; of a folder for a cluster there is one row, with the
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
    """What it was before."""
    seconds: float | None
    """From when the start was asked for until the model answered; of a host that serves already,
    its last start."""
    held: WeightsHeldIn | None
    """Where the weights were when the start began."""
