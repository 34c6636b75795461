"""`kimi-prov/restart/v1`: how engines stopped and started again."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Required, WeightsHeldIn


class Restart(TypedDict):
    """What kimi-prov restart has restarted.

    A host that failed has only ok and detail. Hosts that serve one model together stop and start
    together, and have the keys of a start.
    """

    schema: Literal["kimi-prov/restart/v1"]
    ok: bool
    hosts: dict[str, RestartedHost]


class RestartedHost(TypedDict, total=False):
    """How one host stopped and started."""

    ok: Required[bool]
    detail: Required[str]
    requests_cut: int | None
    """Answers that did not end in time; null for a cluster's."""
    seconds: float | None
    """Of all its instances, one after the other; for hosts that serve together, of their start."""
    was: Literal["serving", "stopped", "asleep", "not serving"] | None
    """Its state before."""
    held: WeightsHeldIn | None
    """Where the weights were when the start began."""
