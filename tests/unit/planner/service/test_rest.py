"""What the plan says of a machine that rests when nobody asks."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import HUGE, found, gpu_facts, lab_facts, plan

from kimi_prov.errors import UserError


def test_without_a_wish_it_never_rests_and_nothing_is_said() -> None:
    document = plan(gpu_facts(), **HUGE)
    assert document["rest"]["idle"] is None
    assert document["rest"]["wake"] == "off"
    assert not [row for row in document["findings"] if row["id"].startswith("rest.")]


@pytest.mark.parametrize(
    ("text", "after_s", "look_s"), [("45s", 45, 11), ("90s", 90, 22), ("30m", 1800, 30)]
)
def test_it_looks_four_times_in_the_time_and_each_half_minute(
    text: str, after_s: int, look_s: int
) -> None:
    idle = plan(idle_stop=text)["rest"]["idle"]
    assert (idle["after_s"], idle["look_s"], idle["action"]) == (after_s, look_s, "stop")


@pytest.mark.parametrize(
    ("settings", "wake"),
    [
        ({}, "refuse"),
        ({"wake": "hold"}, "hold"),
        ({"wake": "off"}, "off"),
        ({"idle_action": "hook", "idle_hook": "/bin/true"}, "refuse"),
        # Nobody answers there who could be asked.
        ({"idle_action": "poweroff", "wake": "hold"}, "off"),
    ],
)
def test_only_a_machine_that_stays_on_is_woken(settings: dict[str, Any], wake: str) -> None:
    assert plan(idle_stop="30m", **settings)["rest"]["wake"] == wake


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"idle_action": "hook"}, "kimi_idle_hook is not set"),
        ({"idle_hook": "/bin/true"}, "it would not be run"),
        ({"budget_usd": 60}, "kimi_hour_usd is not set"),
    ],
)
def test_wishes_that_contradict_each_other_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(idle_stop="30m", **settings)


def test_a_ram_disk_that_stays_has_its_cost_told() -> None:
    keep = plan(lab_facts(), ram_disk="always", stopped_memory="keep")
    (row,) = found(keep, "rest.memory")
    assert "stay taken while the machine is stopped or asleep" in row["observed"]
    assert not found(plan(lab_facts(), ram_disk="always"), "rest.memory")
    assert not found(plan(lab_facts(), ram_disk="never", stopped_memory="keep"), "rest.memory")


def test_what_an_hour_costs_is_planned_where_it_is_counted() -> None:
    assert "paid" not in plan(idle_stop="30m")["rest"]
    paid = plan(idle_stop="30m", hour_usd="26.5", budget_usd=60)["rest"]["paid"]
    assert paid == {"usd_hour": 26.5, "budget_usd": 60.0, "kept_in": None}
    # At the root of the bucket, whichever folder has the weights.
    for source in ("gs://of-site/kimi-k2.5", "gs://of-site/models/kimi/"):
        document = plan(idle_stop="30m", hour_usd=26, weights_source=source)
        assert document["rest"]["paid"]["kept_in"] == "gs://of-site/kimi-sessions"
    with pytest.raises(UserError, match="kimi_idle_stop is not set"):
        plan(hour_usd=26)
    for wrong in (0, -1, True, "much"):
        with pytest.raises(UserError, match="a number of dollars above 0"):
            plan(idle_stop="30m", hour_usd=wrong)
