"""What is found about the network between the hosts of a group."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import HUGE, LAB_SETTINGS, found, gpu_facts, lab_facts

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts.host import read_host
from kimi_prov.planner.hosts import groups, networks
from kimi_prov.planner.hosts.groups import Member
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.rules import network
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.planner.rules.context import RuleResult

PORT = {
    "device": "mlx5_0",
    "port": 1,
    "link_layer": "InfiniBand",
    "state": "ACTIVE",
    "speed_bits_per_s": 400 * 10**9,
}
ROCE = {**PORT, "link_layer": "Ethernet", "gid_index": 3, "gid_type": "RoCE v2", "netdev": "ens1"}


def member(
    rank: int,
    address: str | None = None,
    *,
    base: dict[str, Any] | None = None,
    rdma: Iterable[dict[str, Any]] = (),
    prefix: int = 24,
    own: str | None = None,
    **interface: Any,
) -> Member:
    """A host with one interface; `own`: its address, where it is not that of the group."""
    here = own or address or f"10.0.0.{rank + 1}"
    facts = copy.deepcopy(base or lab_facts())
    facts["network"] |= {
        "interfaces": [{"name": "ens1", "state": "up", "addresses": [f"{here}/{prefix}"]}],
        "rdma": list(rdma),
    }
    facts["network"]["interfaces"][0] |= interface
    return Member(f"host-{rank}", rank, read_host(facts), {}, address)


def pair(*addresses: str | None, **given: Any) -> list[Member]:
    return [member(rank, address, **given) for rank, address in enumerate(addresses)]


def severities(found: Iterable[RuleResult]) -> list[str | None]:
    return [row.get("severity") for row in found]


@pytest.mark.parametrize(
    ("members", "found"),
    [
        (pair("10.0.0.1", "10.0.0.2"), []),
        (pair("fd00::1", "fd00::2", prefix=64), []),
        (pair("10.0.0.1", "10.0.1.1"), ["blocker"]),
        (pair("10.0.0.1", "10.0.1.1", prefix=32), ["warning"]),
        (pair("10.0.0.1", "fd00::1"), ["blocker"]),
        (pair("10.0.0.1", None), ["blocker"]),
        (pair(None, None), ["blocker", "blocker"]),
        ([member(0, "10.0.0.1"), member(1, "10.0.0.2", own="10.9.0.1")], ["blocker"]),
        ([member(0, "10.0.0.1", mtu=1500), member(1, "10.0.0.1", mtu=9000)], ["blocker"]),
    ],
)
def test_addresses_are_on_one_network(members: list[Member], found: list[str]) -> None:
    assert severities(network.check_addresses(members)) == found


def test_nothing_is_said_of_a_host_whose_network_nobody_looked_at() -> None:
    unknown = Member("old", 0, read_host(gpu_facts()), {}, None)
    assert list(network.check_addresses([unknown, member(1, "10.0.0.2")])) == []
    assert list(network.check_rdma([unknown, unknown], 61, 7168, tensor_parallel=True)) == []
    assert list(network.check_mtu([unknown])) == list(network.check_links([unknown])) == []


def test_one_machine_s_facts_for_every_host_have_one_address() -> None:
    assert list(network.check_addresses([member(0, "10.0.0.1"), member(1, "10.0.0.1")])) == []


def test_different_mtus_are_told_with_the_least() -> None:
    members = [member(0, "10.0.0.1", mtu=9000), member(1, "10.0.0.2", mtu=1500)]
    (row,) = network.check_mtu(members)
    assert row["observed"] == "host-0: ens1 9000, host-1: ens1 1500"
    assert "1500" in str(row["fix"])
    assert list(network.check_mtu(pair("10.0.0.1", "10.0.0.2", mtu=9000))) == []


def test_a_link_that_is_down_blocks_and_a_slower_one_is_told() -> None:
    down = [member(0, "10.0.0.1", state="lowerlayerdown"), member(1, "10.0.0.2")]
    assert severities(network.check_links(down)) == ["blocker"]
    speeds = [100 * 10**9, 25 * 10**9, None]
    mixed = [member(n, f"10.0.0.{n + 1}", speed_bits_per_s=s) for n, s in enumerate(speeds)]
    (row,) = network.check_links(mixed)
    assert row["severity"] == "warning"
    assert row["observed"] == "host-1: ens1 at 25 Gbit/s"
    slow = {**PORT, "speed_bits_per_s": 200 * 10**9}
    (row,) = network.check_links([member(0, "10.0.0.1", rdma=[PORT]), member(1, rdma=[slow])])
    assert row["observed"] == "host-1: mlx5_0 at 200 Gbit/s"


def test_tcp_alone_costs_tensor_parallelism_more_than_is_allowed() -> None:
    members = pair("10.0.0.1", "10.0.0.2", base=gpu_facts())
    (row,) = network.check_rdma(members, 61, 7168, tensor_parallel=True)
    assert row["severity"] == "blocker"
    assert "122 sums" in str(row["observed"])
    (row,) = network.check_rdma(members, 61, 7168, tensor_parallel=False)
    assert row["severity"] == "warning"
    assert "14 kB a token" in str(row["observed"])
    one = [member(0, "10.0.0.1", rdma=[PORT]), member(1, "10.0.0.2", rdma=[PORT])]
    assert list(network.check_rdma(one, 61, 7168, tensor_parallel=True)) == []
    idle = [member(0, rdma=[PORT]), member(1, rdma=[{**PORT, "state": "DOWN"}])]
    (row,) = network.check_rdma(idle, 61, 7168, tensor_parallel=True)
    assert "host-1" in str(row["observed"])


def test_roce_without_a_gid_of_version_2_is_told() -> None:
    old = {**ROCE, "gid_index": 0, "gid_type": "IB/RoCE v1"}
    (row,) = network.check_gids(
        [member(0, rdma=[ROCE]), member(1, rdma=[old]), member(2, rdma=[PORT])]
    )
    assert row["observed"] == "host-1: mlx5_0 port 1 on ens1 has IB/RoCE v1"


def test_the_fastest_devices_of_one_kind_carry_the_group() -> None:
    base = gpu_facts()
    management = {**ROCE, "device": "mlx5_9", "speed_bits_per_s": 25 * 10**9}
    second = {**ROCE, "device": "mlx5_1"}
    found = member(0, base=base, rdma=[management, second, ROCE]).host
    assert networks.make_rdma_document(found) == {
        "kind": "roce",
        "devices": ["mlx5_0", "mlx5_1"],
        "gid_index": 3,
    }
    other = member(0, base=base, rdma=[ROCE, {**second, "gid_index": 5}]).host
    assert (networks.make_rdma_document(other) or {})["gid_index"] is None
    fabric = member(0, base=base, rdma=[ROCE, {**PORT, "device": "mlx5_4", "port": 2}]).host
    assert networks.make_rdma_document(fabric) == {
        "kind": "infiniband",
        "devices": ["mlx5_4"],
        "gid_index": None,
    }
    assert networks.make_rdma_document(member(0, rdma=[PORT]).host) is None, "no GPUs"


def planned(members: list[Member], **settings: Any) -> dict[str, Any]:
    """The plan of the head of these hosts."""
    given = {**LAB_SETTINGS, "kimi_hosts_per_model": len(members)}
    given |= {f"kimi_{name}": value for name, value in (HUGE | settings).items()}
    parsed = parse_settings(given, host=members[0].name)
    hosts = tuple(
        groups.HostInput(m.name, m.host.facts, groups.select_shared_settings(parsed), m.address)
        for m in members
    )
    for row, m in zip(hosts, members, strict=True):
        row.facts["network"]["addresses"] = [m.address]  # type: ignore[index]
    together = groups.GroupHosts("pair", members[0].name, hosts)
    return make_plan(members[0].host.facts, parsed, load_catalogue(), together)


def two(**given: Any) -> list[Member]:
    return pair("10.0.0.1", "10.0.0.2", base=gpu_facts(), **given)


def test_a_pipeline_over_tcp_is_planned_and_tensor_parallelism_is_not() -> None:
    plan = planned(two(mtu=1500))
    assert [row["severity"] for row in found(plan, "group.rdma")] == ["warning"]
    wide = {"tensor-parallel-size": 16}
    (row,) = found(planned(two(), engine_args=wide), "group.rdma")
    assert row["severity"] == "blocker"
    assert "InfiniBand or RoCE" in row["title"]
    assert found(planned(two(rdma=[PORT]), engine_args=wide), "group.rdma") == []


def test_a_plan_tells_every_fault_of_the_network() -> None:
    old = {**ROCE, "gid_type": "IB/RoCE v1"}
    members = [
        member(0, "10.0.0.1", base=gpu_facts(), rdma=[old], mtu=9000),
        member(1, "10.7.0.2", base=gpu_facts(), rdma=[old], mtu=1500, state="down"),
    ]
    plan = planned(members)
    names = ("group.address", "group.gid", "group.link", "group.mtu")
    told = {name: [row["severity"] for row in found(plan, name)] for name in names}
    assert told == {
        "group.address": ["blocker"],
        "group.gid": ["warning", "warning"],
        "group.link": ["blocker"],
        "group.mtu": ["warning"],
    }


def test_nccl_is_told_the_devices_and_the_gid_and_the_firewall_the_peers() -> None:
    plan = planned(two(rdma=[ROCE]))
    env = plan["instances"][0]["env"]
    assert (env["NCCL_IB_HCA"], env["NCCL_IB_GID_INDEX"]) == ("=mlx5_0", "3")
    assert plan["group"]["rdma"]["kind"] == "roce"
    assert plan["firewall"]["peers_ipv4"] == ["10.0.0.2"]
    assert env["NCCL_SOCKET_FAMILY"] == "AF_INET"
    more = {"addresses": ["10.0.0.9/24", "10.0.0.2/24", "fd00::2/64"]}
    head, _ = two()
    several = planned([head, member(1, "10.0.0.2", base=gpu_facts(), **more)])
    assert several["firewall"]["peers_ipv4"] == ["10.0.0.2", "10.0.0.9"]
    assert several["firewall"]["peers_ipv6"] == ["fd00::2"]
    assert several["group"]["peers"] == ["10.0.0.2"]
    assert plan["firewall"]["peer_ports"] == ["29500-29501", "29510-29541"]
    fabric = planned(two(rdma=[PORT]))["instances"][0]["env"]
    assert "NCCL_IB_GID_INDEX" not in fabric
    assert "NCCL_IB_HCA" not in planned(two())["instances"][0]["env"]


def test_what_nccl_loads_for_the_cards_is_installed_where_they_are_used() -> None:
    library = {"libibverbs1", "ibverbs-providers"}
    for port in (PORT, ROCE):
        assert library <= {*planned(two(rdma=[port]))["packages"]}
    assert library.isdisjoint(planned(two())["packages"])
