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
        "rdma": None,
    }
}
RDMA = {"kind": "infiniband", "devices": ["mlx5_0", "mlx5_1:2"], "gid_index": None}
IB = {
    "network": "IB",
    "devices": ["mlx5_0:1/IB", "mlx5_1:2/IB"],
    "direct": True,
    "reason": None,
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


def with_rdma(rank: int = 0) -> dict[str, Any]:
    return {"group": {**PLAN["group"], "rdma": RDMA, "rank": rank}}


def took(transport: dict[str, Any] | None) -> dict[str, Any]:
    """What a host answers whose link holds its promise, over this network."""
    row = proof(300, backend="nccl", rdma=400)
    return {**row, "found": {**row["found"], "transport": transport}}


@pytest.mark.parametrize(
    ("transport", "wanted"),
    [
        (IB, "NCCL by IB (mlx5_0:1/IB, mlx5_1:2/IB, the cards read the GPUs' memory themselves)"),
        ({**IB, "direct": False}, "NCCL by IB (mlx5_0:1/IB, mlx5_1:2/IB) between 2 hosts"),
        ({**IB, "network": "AWS Libfabric", "devices": []}, "NCCL by AWS Libfabric between"),
        (None, "NCCL between 2 hosts"),
    ],
)
def test_the_network_that_nccl_took_is_named(transport: dict[str, Any] | None, wanted: str) -> None:
    row = network.check_head(with_rdma(), dict.fromkeys(("alpha", "beta"), took(transport)))
    assert row["status"] == "ok", row
    assert wanted in row["detail"]


@pytest.mark.parametrize(
    ("transport", "wanted"),
    [
        ({"reason": "no library"}, "apt-get install libibverbs1 ibverbs-providers"),
        ({"reason": "no device"}, "ibv_devinfo"),
        ({"reason": None}, "NCCL_IB_DISABLE"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_tcp_beside_planned_cards_fails_with_the_link_that_should_carry_it(
    transport: dict[str, Any], wanted: str, rank: int
) -> None:
    socket = {"network": "Socket", "devices": [], "direct": False, **transport}
    proofs = {"alpha": took(socket), "beta": took(socket)}
    judge = (network.check_head, network.check_rank)[rank]
    row = judge(with_rdma(rank), proofs)
    assert row["status"] == "fail"
    planned = "NCCL took TCP on ens1, and the plan has InfiniBand by mlx5_0, mlx5_1:2"
    assert planned in row["detail"]
    assert wanted in row["detail"]


def test_a_planned_card_that_was_not_taken_is_named() -> None:
    one = took({**IB, "devices": ["mlx5_0:1/IB", "mlx5_1:1/IB"]})
    row = network.check_head(with_rdma(), {"alpha": one, "beta": one})
    assert row["status"] == "fail"
    assert "see the state of mlx5_1:2 with  ibv_devinfo" in row["detail"]


def test_tcp_is_right_where_no_card_is_planned() -> None:
    socket = took({"network": "Socket", "devices": [], "direct": False, "reason": "no device"})
    row = network.check_head(PLAN, {"alpha": socket, "beta": socket})
    assert row["status"] == "ok"
    assert row["detail"].startswith("NCCL by TCP on ens1 between 2 hosts")
