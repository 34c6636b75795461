"""What is said of the network between the hosts of a group."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.acceptance import network, suite

PLAN = {
    "group": {
        "name": "pair",
        "rank": 0,
        "members": [{"host": "alpha"}, {"host": "beta"}],
    }
}
GBIT = 10**9


def proof(
    gbit: float = 9.0,
    *,
    speed: float | None = 10,
    rdma: float | None = None,
    mtu: int = 1500,
    backend: str = "gloo",
) -> dict[str, Any]:
    """What a host answers; rates in Gbit/s."""
    return {
        "rank": 0,
        "found": {
            "backend": backend,
            "bandwidth_bytes_s": gbit * GBIT / 8,
            "latency_s": 0.00012,
            "bytes": 1 << 26,
        },
        "said": "",
        "link": {
            "interface": "ens1",
            "speed_bits_per_s": speed and speed * GBIT,
            "mtu": mtu,
            "rdma_bits_per_s": rdma and rdma * GBIT,
        },
        "seconds": 4.5,
    }


def checked(alpha: Any, beta: Any) -> dict[str, Any]:
    return network.check_head(PLAN, {"alpha": alpha, "beta": beta})


def test_a_network_that_holds_its_promise_passes_with_its_figures() -> None:
    row = checked(proof(0.9, speed=1), proof(0.9, speed=10))
    assert (row["name"], row["status"], row["seconds"]) == ("network", "ok", 4.5)
    assert "Gloo between 2 hosts: 0.9 Gbit/s, 120 µs for a small sum" in row["detail"]
    assert "ens1 of alpha promises 1 Gbit/s" in row["detail"]


@pytest.mark.parametrize(
    ("gbit", "given", "status"),
    [
        (0.4, {"speed": 1}, "ok"),
        (0.3, {"speed": 1}, "fail"),
        (1.1, {"speed": 100}, "ok"),
        (0.94, {"speed": 100}, "fail"),
        (0.01, {"speed": None}, "ok"),
        (150, {"backend": "nccl", "rdma": 400, "speed": 1}, "ok"),
        (100, {"backend": "nccl", "rdma": 400, "speed": 1}, "fail"),
        (2, {"backend": "nccl", "speed": 25}, "ok"),
    ],
)
def test_less_than_a_third_of_the_promise_fails(
    gbit: float, given: dict[str, Any], status: str
) -> None:
    row = checked(proof(gbit, **given), proof(gbit, **given))
    assert row["status"] == status, row
    assert ("ethtool" in row["detail"]) == (status == "fail")


def test_an_unknown_speed_and_unlike_mtus_are_told() -> None:
    row = checked(proof(speed=None), proof(mtu=9000))
    assert row["status"] == "ok"
    assert "not judged: no speed is known of ens1 of alpha" in row["detail"]
    assert "the MTU differs: alpha 1500, beta 9000" in row["detail"]


@pytest.mark.parametrize(
    ("beta", "told"),
    [
        (None, "beta was not asked"),
        ({"error": "no route"}, "beta: no route"),
        ({**proof(), "found": None, "said": "timed out"}, "beta: timed out"),
        ({**proof(), "found": None, "said": ""}, "beta: no reason given"),
    ],
)
def test_a_host_that_measured_nothing_fails_with_its_reason(beta: Any, told: str) -> None:
    row = checked(proof(), beta)
    assert row["status"] == "fail"
    assert told in row["detail"]


def test_a_rank_says_that_nobody_asks_it() -> None:
    plan = {
        "group": {**PLAN["group"], "rank": 1},
        "instances": [{"index": 0, "numactl": [], "numa_nodes": [], "cpus": "", "env": {}}],
        "hybrid": None,
        "tuning": {"thp": "madvise"},
    }
    unit = {"state": "activating"}
    seen = {
        "instances": [{"index": 0, "unit": unit, "processes": []}],
        "environment": "bin/python does not run",
    }
    document = suite.make_rank_document(plan, seen, network.check_rank(plan, {"beta": proof()}), [])
    assert document["vantage"] == "none"
    assert "they reach alpha" in document["vantage_reason"]
    status = {row["name"]: row["status"] for row in document["checks"]}
    assert status == {
        **dict.fromkeys(("unit", "environment", "placement"), "fail"),
        "network": "ok",
    }
    unit["state"] = "active"
    assert suite.check_units(seen)["status"] == "ok"
    assert network.check_rank(plan, {})["status"] == "fail"
