"""A candidate of a tune: other values of some variables, and how flags become such values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.planner.settings.flag_names import parse_int

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import Variables
    from kimi_prov.planner.tuning.subject import Subject

Direction = Literal["up", "down", "other"]


@dataclass(frozen=True)
class Candidate:
    """Other values of some variables. `direction`: whether its number is larger than what serves.

    Of one direction the nearest comes first: where it loses clearly, those behind it are left out.
    """

    setting: str
    label: str
    variables: Variables
    direction: Direction = "other"


def set_flags(subject: Subject, base: Variables, flags: Variables) -> Variables:
    """Return the variables with these flags among those that are set already."""
    before = base.get("engine_args") or subject.settings.engine_args
    return {**base, "engine_args": {**before, **flags}}


def read_flag(plan: MachinePlan, flag: str) -> int | None:
    """Return the whole number that a plan gives a flag."""
    argv = plan["instances"][0]["argv"]
    return parse_int(argv[argv.index(flag) + 1]) if flag in argv[:-1] else None
