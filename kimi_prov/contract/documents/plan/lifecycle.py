"""Plan: when engines stop, start and are watched."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Positive


class WatchdogPlan(TypedDict):
    """How long an engine may make no step before it is suspected; seconds."""

    enabled: bool
    quiet_s: int
    """Without a step, before the watchdog requests a token."""
    computing_s: int
    """In place of quiet_s while it computes on the processors."""
    ask_s: int
    """For the answer."""
    every_s: int
    """Between two samples."""
    only_looks: bool
    """In a group: the watchdog neither asks nor restarts."""
    reason: str
    stacks: StacksPlan | None


class StacksPlan(TypedDict):
    """The environment of the program that reads stacks."""

    lock: str
    env_dir: str
    program: str


class DriftPlan(TypedDict):
    """Whether the machine checks for drift by itself."""

    timer: bool
    """Whether the machine compares itself with what was applied, once an hour."""


class RestPlan(TypedDict):
    """How the machine stops, sleeps and wakes."""

    paid: NotRequired[PaidPlan]
    memory: Literal["free", "keep"]
    """What happens to the RAM disk while the machine is stopped or asleep."""
    idle: IdlePlan | None
    power: IdlePower | None
    wake: Literal["refuse", "hold", "off"]
    """What a request with a valid key does while the machine is asleep."""


class PaidPlan(TypedDict):
    """The price of an hour and the budget of a session; absent where no price was set."""

    usd_hour: float
    budget_usd: float | None
    kept_in: NotRequired[str | None]
    """The folder of a bucket in which the machine stores the cost of its sessions; null where the
    weights come from no bucket."""


class IdlePlan(TypedDict):
    """When the machine sleeps because no client asks; null for never."""

    after_s: int
    """Seconds without a request."""
    look_s: int
    """Seconds between two checks."""
    action: Literal["stop", "sleep", "poweroff", "hook"]
    hook: str | None
    """The program to run, for hook."""
    poweroff_self: bool
    """Consent to switch off a machine that is its own control machine."""


class IdlePower(TypedDict):
    """The power of a machine without requests, by the plan's power and the catalogue.

    null where it is unknown.
    """

    idle_kw: float
    usd_per_kwh: float


class UpgradePlan(TypedDict):
    """How an apply that changes what serves carries it out; not in the machine's plan.json."""

    in_place: bool
    min_speed: float | None
    """Least speed of the new engine, as a share of the old one's."""
    keep_versions: Positive
    frees: list[str]
    """Weights that are removed first, where the disk has no space for both versions."""
    switches: bool
    """Whether an apply to this machine changes what serves there."""
