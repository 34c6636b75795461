"""Starts of the engine, counted from one look to the next."""

from __future__ import annotations

from typing import Any

from kimi_prov.on_host.metrics import instances
from kimi_prov.on_host.system.exposition import render

PLAN = {"instances": [{"index": 0}], "timeouts": {"unit_start_s": 3600}}
S = 1_000_000


def row(
    state: str, run: str, began: int, up: int = 0, restarts: int = 0
) -> dict[str, dict[str, str]]:
    """The unit as `systemctl show` tells it; times in seconds since the boot."""
    return {
        "kimi-serve@0.service": {
            "ActiveState": state,
            "InvocationID": run,
            "NRestarts": str(restarts),
            "InactiveExitTimestampMonotonic": str(began * S),
            "ActiveEnterTimestampMonotonic": str(up * S),
        }
    }


def looked(kept: dict[str, Any], shown: Any, now: int, boot: str = "b1") -> tuple[Any, Any]:
    samples, keep = instances.collect(PLAN, shown, kept, now * S, boot)
    text = render(samples, instances.HELPS)
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    values = {line.split("{")[0]: float(line.rpartition(" ")[2]) for line in rows}
    return {name.removeprefix("kimi_instance_"): value for name, value in values.items()}, keep


def test_a_start_under_way_has_its_seconds_and_its_limit() -> None:
    seen, _ = looked({}, row("activating", "r1", began=100), now=130)
    assert (seen["starting"], seen["active"]) == (1, 0)
    assert (seen["starting_seconds"], seen["start_limit_seconds"]) == (30, 3600)
    assert seen["starts_total"] == 1
    assert "last_start_seconds" not in seen


def test_a_start_that_ended_well_keeps_its_seconds_over_a_stop() -> None:
    _, kept = looked({}, row("active", "r1", began=100, up=160), now=200)
    seen, kept = looked(kept, row("inactive", "", began=100, up=160), now=300)
    assert (seen["active"], seen["starting"], seen["starting_seconds"]) == (0, 0, 0)
    assert (seen["last_start_seconds"], seen["starts_total"]) == (60, 1)
    seen, _ = looked(kept, row("active", "r2", began=400, up=420), now=500)
    assert (seen["last_start_seconds"], seen["starts_total"]) == (20, 2)


def test_restarts_between_two_looks_are_counted_all() -> None:
    _, kept = looked({}, row("active", "r1", began=1, up=2, restarts=1), now=3)
    seen, kept = looked(kept, row("active", "r5", began=50, up=52, restarts=4), now=60)
    assert (seen["starts_total"], seen["restarts_total"]) == (4, 3)
    seen, _ = looked(kept, row("active", "r5", began=50, up=52, restarts=4), now=90)
    assert (seen["starts_total"], seen["restarts_total"]) == (4, 3)


def test_systemd_counts_anew_after_a_boot_and_metrics_do_not() -> None:
    _, kept = looked({}, row("active", "r1", began=1, up=2, restarts=7), now=3)
    seen, _ = looked(kept, row("active", "r2", began=1, up=2, restarts=0), now=3, boot="b2")
    assert (seen["starts_total"], seen["restarts_total"]) == (2, 0)


def test_a_start_that_somebody_asked_for_is_no_restart() -> None:
    _, kept = looked({}, row("active", "r1", began=1, up=2, restarts=2), now=3)
    seen, kept = looked(kept, row("active", "r2", began=10, up=12, restarts=0), now=20)
    assert (seen["starts_total"], seen["restarts_total"]) == (2, 0)
    # One that was asked for and then ended, between two looks.
    seen, kept = looked(kept, row("activating", "r4", began=30, restarts=1), now=31)
    assert seen["restarts_total"] == 1
    seen, _ = looked(kept, row("active", "r6", began=40, up=41, restarts=0), now=50)
    assert seen["restarts_total"] == 1


def test_the_last_start_of_a_unit_that_is_stopping_is_not_guessed() -> None:
    seen, _ = looked({}, row("deactivating", "r1", began=100, up=50), now=200)
    assert "last_start_seconds" not in seen


def test_a_rank_leaves_it_to_the_head_to_tell_that_the_engine_ended() -> None:
    """systemd starts its unit anew with every start of the group, whoever asked for that."""
    plan = {**PLAN, "instances": [{"index": 0, "unit": "kimi-rank.service"}], "group": {"rank": 1}}
    shown = {"kimi-rank.service": row("active", "r1", began=1, up=2)["kimi-serve@0.service"]}
    samples, kept = instances.collect(plan, shown, {}, 3 * S, "b1")
    shown["kimi-rank.service"] |= {"InvocationID": "r2", "NRestarts": "1"}
    samples, _ = instances.collect(plan, shown, kept, 4 * S, "b1")
    values = {sample.name: sample.value for sample in samples}
    assert values["kimi_instance_active"] is True
    assert values["kimi_instance_starts_total"] == 2
    assert values["kimi_instance_restarts_total"] is None
