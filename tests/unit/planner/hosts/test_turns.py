"""Some machines are changed at a time: those that serve nothing first, sets of hosts as one."""

from __future__ import annotations

from kimi_prov.planner.hosts.batches import Machine, split_into_batches


def machines(*names: str, away: str = "", heads: dict[str, str] | None = None) -> list[Machine]:
    return [Machine(name, (heads or {}).get(name, name), name not in away) for name in names]


def test_all_at_once_is_one_turn() -> None:
    assert split_into_batches(machines("a", "b", "c", away="b"), None) == [["a", "b", "c"]]
    assert split_into_batches([], None) == split_into_batches([], 1) == []


def test_so_many_at_a_time_in_their_order() -> None:
    assert split_into_batches(machines("a", "b", "c"), 1) == [["a"], ["b"], ["c"]]
    assert split_into_batches(machines("a", "b", "c"), 2) == [["a", "b"], ["c"]]
    assert split_into_batches(machines("a", "b"), 9) == [["a", "b"]]


def test_who_serves_nothing_comes_first_and_at_once() -> None:
    assert split_into_batches(machines("a", "b", "c", "d", away="bd"), 1) == [
        ["b", "d"],
        ["a"],
        ["c"],
    ]
    assert split_into_batches(machines("a", "b", away="ab"), 1) == [["a", "b"]]


def test_hosts_that_serve_one_model_together_are_one() -> None:
    heads = {"a": "a", "b": "a", "c": "c", "d": "c"}
    assert split_into_batches(machines("a", "b", "c", "d", heads=heads), 1) == [
        ["a", "b"],
        ["c", "d"],
    ]
    # One of them serves: then all of them do.
    assert split_into_batches(machines("a", "b", "c", away="b", heads=heads), 1) == [
        ["a", "b"],
        ["c"],
    ]
