"""`kimi-prov/drift/v1`: what is not as it was applied."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Rule, Timestamp


class Drift(TypedDict):
    """What on each machine is not as it was applied."""

    schema: Literal["kimi-prov/drift/v1"]
    ok: bool
    """Nothing differs, and all could be looked at."""
    complete: bool
    """All of it could be looked at, on every host."""
    hosts: dict[str, DriftOfHost]


class DriftOfHost(TypedDict):
    """What differs on one host."""

    ok: bool
    complete: bool
    provisioned: bool | None
    """null: the machine did not answer."""
    detail: str
    looked_at: Timestamp | None
    applied: AppliedEntry | None
    weights_read: bool
    """Every byte of the weights was read again."""
    weights_read_from: dict[str, Literal["disk", "memory", "page cache"]]
    """Each folder that was read: from the disk itself, from memory (the RAM disk), or, where its
    file system reads in no other way, through the page cache once the pages that no process has
    mapped were dropped."""
    drift: list[Difference]
    unseen: list[Unseen]
    """What could not be looked at."""
    would_change: list[PlannedOtherwise] | None
    """What `apply` would decide otherwise today: no drift; null where that is not known."""
    would_change_unknown: str | None
    """Why it is not known."""
    stand_ins: list[str]


class AppliedEntry(TypedDict):
    """The last apply or rollback that ended well; null where no record of one is there."""

    entry: int | None
    """Its number in the history."""
    at: Timestamp | None
    by: AppliedBy | None
    inventory: str | None
    kimi_prov: str | None
    """Version that applied it."""


class AppliedBy(TypedDict):
    """Who applied it."""

    user: NotRequired[str | None]
    control_host: NotRequired[str | None]


class Difference(TypedDict):
    """What is not as it was applied."""

    id: Annotated[str, Rule(pattern=r"^drift\.[a-z_]+$")]
    """Stable; see docs/reference/findings.md."""
    severity: Literal["warning"]
    title: str
    source: str
    subject: str
    """Path, unit, package, account, setting, port or key's name."""
    expected: str | None
    """As applied; null: nothing was there."""
    observed: str | None
    """As it is; null: nothing is there."""
    since: Timestamp | None
    """null: nothing tells."""
    since_from: str | None
    """What tells the time."""
    by: str | None
    """Through what, as far as logs tell."""
    fix: str
    """The command that fixes it; one of kimi-prov is for the control machine, others for the
    host."""


class Unseen(TypedDict):
    """What could not be looked at, and why."""

    what: str
    why: str
    fix: str | None


class PlannedOtherwise(TypedDict):
    """A key of the plan that would have another value today."""

    id: Literal["drift.planned_otherwise"]
    title: str
    key: str
    """Place in the plan: engine.version, instances[0].argv."""
    applied: Any
    """Any JSON value."""
    planned: Any
    """Any JSON value."""
