"""`kimi-prov/drift/v1`: differences from what was applied."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Rule, Timestamp


class Drift(TypedDict):
    """The differences of each machine from what was applied."""

    schema: Literal["kimi-prov/drift/v1"]
    ok: bool
    """Nothing differs, and all parts could be read."""
    complete: bool
    """All parts could be read, on every host."""
    hosts: dict[str, DriftOfHost]


class DriftOfHost(TypedDict):
    """The differences of one host."""

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
    file system has no direct reads, through the page cache after the pages that no process has
    mapped were dropped."""
    drift: list[Difference]
    unseen: list[Unseen]
    """Parts that could not be read."""
    would_change: list[PlannedOtherwise] | None
    """What `apply` would decide differently today: no drift; null where that is unknown."""
    would_change_unknown: str | None
    """Why it is unknown."""
    stand_ins: list[str]


class AppliedEntry(TypedDict):
    """The last apply or rollback that succeeded; null without a record of one."""

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
    """A difference from what was applied."""

    id: Annotated[str, Rule(pattern=r"^drift\.[a-z_]+$")]
    """Stable; see docs/reference/findings.md."""
    severity: Literal["warning"]
    title: str
    source: str
    subject: str
    """Path, unit, package, account, setting, port or key's name."""
    expected: str | None
    """As applied; null: nothing existed."""
    observed: str | None
    """The present value; null: nothing exists."""
    since: Timestamp | None
    """null: no source says it."""
    since_from: str | None
    """The source of the time."""
    by: str | None
    """What changed it, as far as logs say."""
    fix: str
    """The command that fixes it; a command of kimi-prov runs on the control machine, others on the
    host."""


class Unseen(TypedDict):
    """A part that could not be read, and why."""

    what: str
    why: str
    fix: str | None


class PlannedOtherwise(TypedDict):
    """A key of the plan that would have another value today."""

    id: Literal["drift.planned_otherwise"]
    title: str
    key: str
    """Path in the plan: engine.version, instances[0].argv."""
    applied: Any
    """Any JSON value."""
    planned: Any
    """Any JSON value."""
