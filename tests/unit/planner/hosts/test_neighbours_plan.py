"""Which host takes its weights from which other, and which ports that opens."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.planner.hosts import neighbours
from kimi_prov.planner.hosts.neighbours import Neighbour

REMOTE = "hf://moonshotai/Kimi-K2.5@main"
PORT = 29600
ROWS = [Neighbour(f"gpu{n}", f"10.0.0.{n}") for n in range(1, 8)]


def plan(source: str = REMOTE) -> dict[str, Any]:
    return {"weights": {"source": source}, "firewall": {"port": 8000}, "findings": []}


def placed(
    own: str, rows: list[Neighbour], wanted: str = "auto", source: str = REMOTE
) -> dict[str, Any]:
    made = plan(source)
    neighbours.add_neighbours(made, own, wanted, PORT, rows)
    return made


def row(number: int) -> dict[str, str]:
    return {"host": f"gpu{number}", "address": f"10.0.0.{number}"}


def test_the_first_asks_the_source_and_each_gives_to_two_at_most() -> None:
    seen = {r.host: placed(r.host, ROWS)["neighbours"] for r in ROWS}
    assert seen["gpu1"] == {"takes_from": None, "gives_to": [row(2), row(3)], "port": PORT}
    assert seen["gpu2"] == {"takes_from": row(1), "gives_to": [row(4), row(5)], "port": PORT}
    assert seen["gpu7"] == {"takes_from": row(3), "gives_to": [], "port": PORT}


@pytest.mark.parametrize("many", range(2, 33))
def test_who_takes_is_who_is_given_to(many: int) -> None:
    rows = [Neighbour(f"gpu{n}", f"10.0.0.{n}") for n in range(1, many + 1)]
    given, taken = [], []
    for near in rows:
        found = placed(near.host, rows)["neighbours"]
        assert len(found["gives_to"]) <= 2
        given += [(near.host, taker["host"]) for taker in found["gives_to"]]
        taken += [(found["takes_from"]["host"], near.host)] if found["takes_from"] else []
    assert sorted(given) == sorted(taken)
    assert len(taken) == many - 1


def test_the_port_is_open_to_the_takers_alone() -> None:
    rows = [Neighbour("a", "10.0.0.1"), Neighbour("b", "fd00::2"), Neighbour("c", "10.0.0.3")]
    assert placed("a", rows)["firewall"]["neighbours"] == {
        "ipv4": ["10.0.0.3"],
        "ipv6": ["fd00::2"],
        "port": PORT,
    }
    assert "neighbours" not in placed("b", rows)["firewall"]


@pytest.mark.parametrize(
    ("rows", "source"),
    [
        (ROWS[:1], REMOTE),
        (ROWS, "file:///srv/model"),
        (ROWS, ""),
        ([Neighbour("gpu1", "gpu1.example.com"), *ROWS[1:]], REMOTE),
    ],
)
def test_where_there_is_no_neighbour_the_plan_is_as_ever(
    rows: list[Neighbour], source: str
) -> None:
    assert placed("gpu1", rows, source=source) == plan(source)


def test_a_name_that_is_no_address_is_left_out() -> None:
    rows = [Neighbour("gpu1", "gpu1.example.com"), *ROWS[1:3]]
    assert placed("gpu2", rows)["neighbours"]["takes_from"] is None
    assert placed("gpu3", rows)["neighbours"]["takes_from"] == row(2)


def test_who_asks_for_a_neighbour_and_has_none_is_told() -> None:
    made = placed("gpu1", ROWS[:1], "neighbours")
    assert "neighbours" not in made
    (finding,) = made["findings"]
    assert (finding["id"], finding["severity"]) == ("weights.no_neighbour", "info")
    assert "no other host" in finding["observed"]
    local = placed("gpu1", ROWS, "neighbours", "file:///srv/model")["findings"][0]
    assert "file:///srv/model" in local["observed"]


def test_one_that_asks_the_source_alone_gives_nothing() -> None:
    assert placed("gpu1", [], "source") == plan()
