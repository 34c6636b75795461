"""Whether an apply switches: where something serves, and would serve otherwise."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from ansible.plugins.filter.core import to_nice_json
from serve_inputs import PLAN

from kimi_prov.ansible import switching
from kimi_prov.ansible.plugins.action.kimi_switch import find_refusal, list_warnings

UPGRADE = {"frees": [], "min_speed": None, "keep_versions": 2, "in_place": False, "switches": False}


def planned(**more: object) -> dict[str, Any]:
    return {**PLAN, "upgrade": UPGRADE, "findings": [], **more}


def facts(plan: dict[str, Any], *, serves: bool = True, **more: object) -> dict[str, Any]:
    """The facts of a machine to which this plan was applied."""
    digest = hashlib.sha256(switching.render_plan(plan).encode()).hexdigest()
    serving = {"kimi-serve@0.service": {"stamp": "x", "form": {}}} if serves else {}
    return {"kimi": {"serving": serving, "plan_sha256": digest, **more}}


def test_the_same_plan_switches_nothing() -> None:
    plan = planned()
    found = facts(plan)
    assert switching.is_needed(plan, found) is False
    moved = planned(findings=[{"id": "disk.room"}], upgrade={**UPGRADE, "keep_versions": 5})
    assert switching.is_needed(moved, found) is False


@pytest.mark.parametrize(
    ("there", "plan", "needed"),
    [
        ({}, planned(paths={}), True),
        ({}, planned(findings=[{"id": "serve.restart"}]), True),
        ({"serves": False}, planned(paths={}), False),
        ({"serves": False, "switch_open": True}, planned(), True),
        ({"serves": False}, planned(upgrade={**UPGRADE, "frees": ["/srv/x"]}), True),
        ({}, planned(paths={}, group={"rank": 0}), True),
        # A member that was cut, as it was alone: its switch is taken over, or ended.
        ({"switch_open": True}, planned(group={"rank": 1}), True),
    ],
    ids=["other plan", "restart", "nothing serves", "cut", "in place", "group", "cut member"],
)
def test_what_switches(there: dict[str, Any], plan: dict[str, Any], needed: bool) -> None:
    assert switching.is_needed(plan, facts(planned(), **there)) is needed


def opened(number: int, digest: str = "d") -> dict[str, Any]:
    return {"restores": number, "group": {"hosts": ["a", "b"], "digest": digest}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": opened(2), "b": opened(5)}, None),
        ({"a": opened(2), "b": opened(5, "other")}, "a to entry 2, b to entry 5"),
        ({"a": opened(2)}, "b would not go back: left out by --limit"),
        ({"a": opened(2), "b": {"failed": True}}, "b would not go back"),
        ({"a": {"restores": 1, "group": None}}, None),
    ],
    ids=["together", "other versions", "left out", "refused", "alone"],
)
def test_the_hosts_of_a_group_roll_back_together_or_not_at_all(
    found: dict[str, Any], said: str | None
) -> None:
    why = find_refusal(found, "a")
    assert why is None if said is None else why is not None and said in why[0]


def test_an_apply_says_what_it_removed_before_the_new_version_came() -> None:
    assert list_warnings({"opened": True}) == []
    (line,) = list_warnings(
        {"opened": False, "freed": ["/srv/kimi/models/a/r", "/srv/kimi/engines/b"]}
    )
    assert "/srv/kimi/models/a/r, /srv/kimi/engines/b: removed first, with no way back" in line


def test_the_plan_is_kept_as_ansibles_own_filter_writes_it() -> None:
    plan = planned()
    without = {k: v for k, v in plan.items() if k not in switching.MOMENTARY}
    assert switching.render_plan(plan) == to_nice_json(without, sort_keys=True) + "\n"
    assert json.loads(switching.render_plan(plan)) == without
