"""`kimi-prov/history/v1`: what was applied to machines."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Positive, Required


class History(TypedDict):
    """What was applied to each machine.

    A host that was not reached has only ok and detail.
    """

    schema: Literal["kimi-prov/history/v1"]
    ok: bool
    hosts: dict[str, HistoryOfHost]


class HistoryOfHost(TypedDict, total=False):
    """What was applied to one host."""

    ok: Required[bool]
    detail: Required[str]
    current: int | None
    """The entry that is in place."""
    switch: OpenSwitch | None
    entries: list[HistoryEntry]
    """Oldest first."""


ServedSide = Literal["former", "new", "both", "none"]

# This key is a keyword of Python.
_From = TypedDict("_From", {"from": int})


class OpenSwitch(_From):
    """A switch that has not ended."""

    entry: int
    phase: Literal["writing", "switching", "returning"]
    since: str
    under_way: bool
    """false: it was interrupted, and the next apply takes it over."""
    serves: ServedSide


class HistoryEntry(TypedDict):
    """One apply or rollback."""

    number: Positive
    kind: Literal["apply", "rollback", "found", "tune"]
    """found: it was in place when an apply of this version first changed it."""
    restores: int | None
    """For a rollback: the entry whose files it restored."""
    started_at: str
    ended_at: str | None
    by: EntryBy | None
    inventory: str | None
    """As given on the control machine."""
    kimi_prov: str | None
    """Version of kimi-prov."""
    result: Literal["done", "failed", "returned", "interrupted"] | None
    """returned: the machine went back to `returned_to`; failed: that did not serve either; null:
    under way."""
    why: str | None
    """Why the result is not done."""
    returned_to: int | None
    serves: ServedByEntry | None
    gateway: GatewayOfEntry | None
    speed: ProbedSpeed | None
    speed_before: ProbedSpeed | None
    """Of what served before, by the same test."""
    seconds_without_service: float | None
    restorable: bool
    """Whether rollback can restore it."""


class EntryBy(TypedDict):
    """Who did it, and from where."""

    user: str
    control_host: str


class ServedByEntry(TypedDict):
    """What it served; null for an entry that did not get so far."""

    engine: str
    variant: str
    version: str
    env_name: str
    model: str
    revision: str
    format: str | None
    context: int
    served_names: list[str]


class GatewayOfEntry(TypedDict):
    """Where a gateway, which serves nothing itself, sent requests. Rollback cannot restore it."""

    address: str | None
    """The address that two gateways share."""
    hosts: list[str]


class ProbedSpeed(TypedDict):
    """By the short speed test, after the switch; null where no engine was started again."""

    decode_tok_s: float
    """Of one request, the best of the rounds."""
    first_token_s: float
    tokens: int
    """Of each answer."""
    rounds: int
