"""Limits of a key over all machines behind a gateway: what is summed, and what is let in."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.on_host.usage.clock import Clock
from kimi_prov.on_host.usage.pool import Pool
from kimi_prov.on_host.usage.store import Store

# The 24th of November 2026, 12:00:00 UTC.
NOON = 1795521600.0
TODAY, YESTERDAY = "2026-11-24", "2026-11-23"


class Time:
    def __init__(self) -> None:
        self.wall, self.steady = NOON, 1000.0

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def pool(time: Time) -> Pool:
    return Pool(lambda: time.wall, lambda: time.steady)


def told(day: str = TODAY, **keys: tuple[list[int], list[list[int]]]) -> dict[str, Any]:
    rows = {name: {"day": whole, "minute": minute} for name, (whole, minute) in keys.items()}
    return {"day": day, "keys": rows}


def ask(pool: Pool, key: str = "a", **limits: int) -> tuple[str, int] | None:
    refusal = pool.ask(key, limits)
    return (refusal.reason, refusal.wait_s) if refusal else None


def test_tokens_of_all_machines_count_together(pool: Pool, time: Time) -> None:
    pool.update("gpu1", told(a=([1, 60], [[20, 1, 60]])))
    assert ask(pool, tokens_per_minute=100) is None
    pool.update("gpu2", told(a=([1, 40], [[5, 1, 40]])))
    assert ask(pool, tokens_per_minute=100) == ("tokens_per_minute", 40)
    assert ask(pool, tokens_per_day=101) is None
    assert ask(pool, tokens_per_day=100) == ("tokens_per_day", 43200)
    assert ask(pool, key="b", tokens_per_minute=1) is None
    # What was told is older by as much as has passed since.
    time.go(40)
    assert ask(pool, tokens_per_minute=100) is None


def test_requests_that_were_let_in_count_at_once_and_not_twice(pool: Pool, time: Time) -> None:
    for _ in range(3):
        assert ask(pool, requests_per_minute=3) is None
    assert ask(pool, requests_per_minute=3) == ("requests_per_minute", 60)
    pool.update("gpu1", told(a=([2, 0], [[0, 2, 0]])))
    pool.update("gpu2", told(a=([1, 0], [[0, 1, 0]])))
    assert ask(pool, requests_per_minute=4) is None
    assert ask(pool, requests_per_minute=4) == ("requests_per_minute", 60)
    time.go(60)
    assert ask(pool, requests_per_minute=4) is None


def test_requests_that_another_gateway_let_in_count(pool: Pool) -> None:
    pool.update("gpu1", told(a=([5, 0], [[10, 5, 0]])))
    assert ask(pool, requests_per_minute=5) == ("requests_per_minute", 50)
    assert ask(pool, requests_per_day=5) == ("requests_per_day", 43200)


def test_a_new_day_begins_at_nothing_whatever_a_machine_told_last(pool: Pool, time: Time) -> None:
    assert ask(pool, requests_per_day=1) is None
    pool.update("gpu1", told(day=TODAY, a=([1, 70], [])))
    assert ask(pool, requests_per_day=1) == ("requests_per_day", 43200)
    time.go(43200)
    assert ask(pool, requests_per_day=1, tokens_per_day=1) is None


def test_a_machine_of_another_day_tells_nothing_of_this_one(pool: Pool) -> None:
    pool.update("gpu1", told(day=YESTERDAY, a=([9, 900], [[1, 1, 90]])))
    assert ask(pool, tokens_per_day=1) is None
    assert ask(pool, tokens_per_minute=90) == ("tokens_per_minute", 59)


def test_what_a_lost_machine_told_last_stays_and_one_that_left_counts_no_more(pool: Pool) -> None:
    pool.update("gpu1", told(a=([1, 60], [])))
    assert ask(pool, tokens_per_day=60) is not None
    pool.retain(["gpu1"])
    assert ask(pool, tokens_per_day=60) is not None
    pool.retain(["gpu2"])
    assert ask(pool, tokens_per_day=60) is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"day": TODAY, "keys": {"a": {}}},
        {"day": TODAY, "keys": {"a": {"day": [1, -1], "minute": []}}},
        {"day": TODAY, "keys": {"a": {"day": [1, True], "minute": []}}},
        {"day": TODAY, "keys": {"a": {"day": [1, 1], "minute": [[1, 1]]}}},
        {"day": TODAY, "keys": {"a" * 65: {"day": [1, 1], "minute": []}}},
    ],
)
def test_what_is_no_use_of_keys_is_refused_whole(pool: Pool, document: dict[str, Any]) -> None:
    pool.update("gpu1", told(a=([1, 60], [])))
    with pytest.raises((ValueError, KeyError, TypeError)):
        pool.update("gpu1", document)
    assert ask(pool, tokens_per_day=60) is not None


def test_what_a_counter_tells_is_what_the_pool_takes(tmp_path, pool: Pool, time: Time) -> None:
    clock = Clock(0.0, lambda: time.wall, lambda: time.steady)
    store = Store(tmp_path / "usage.db", keep_days=400, clock=clock)
    assert store.ask("1", "a", {}) is None
    store.tell("1", "a", 30, 30, ended=True)
    time.go(15)
    pool.update("gpu1", store.recent())
    assert store.recent()["keys"] == {"a": {"day": [1, 60], "minute": [[15, 1, 60]]}}
    assert ask(pool, tokens_per_minute=60) == ("tokens_per_minute", 45)
    store.close()


def test_requests_that_no_machine_answered_hold_a_key_up_for_a_minute_at_most(
    pool: Pool, time: Time
) -> None:
    pool.update("gpu1", told(a=([2, 0], [])))
    for _ in range(600):
        # Nobody answers: the client tries again, as long as it may.
        refusal = ask(pool, requests_per_day=5)
        assert refusal is None or refusal[1] <= 60
        time.go(5)
    time.go(60)
    assert ask(pool, requests_per_day=5) is None
    # The machines are there again, and what they tell keeps it out until the next day.
    pool.update("gpu1", told(a=([5, 0], [[0, 3, 0]])))
    assert ask(pool, requests_per_day=5) == ("requests_per_day", 43200 - 600 * 5 - 60)


def test_requests_of_a_day_that_no_machine_has_told_yet_count_at_once(
    pool: Pool, time: Time
) -> None:
    pool.update("gpu1", told(a=([3, 0], [])))
    assert ask(pool, requests_per_day=5) is None
    time.go(20)
    assert ask(pool, requests_per_day=5) is None
    assert ask(pool, requests_per_day=5) == ("requests_per_day", 40)
    # One of them is told: it counts once.
    pool.update("gpu1", told(a=([4, 0], [[20, 1, 0]])))
    assert ask(pool, requests_per_day=5) == ("requests_per_day", 60)
    pool.update("gpu1", told(a=([4, 0], [[20, 1, 0]])))
    assert ask(pool, requests_per_day=6) is None
