"""Interfaces and RDMA devices as the kernel shows them.

The trees are made from documentation, not recorded: Documentation/ABI/stable/sysfs-class-infiniband
of the kernel, and how mlx5 lists its GIDs (RoCE v1 and v2 of each address, one after the other).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machine_of_files import tree
from plan_inputs import lab_facts

from kimi_prov.facts.host import read_host
from kimi_prov.on_host.probe import interfaces, network, rdma

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.on_host.system.machine import Machine

ROOT_PORT = "/sys/devices/pci0000:15/0000:15:01.0"
UPSTREAM = f"{ROOT_PORT}/0000:16:00.0"
PLACES = {
    "0000:1a:00.0": f"{UPSTREAM}/0000:17:02.0/0000:1a:00.0",  # its GPU, on the same switch
    "0000:1b:00.0": f"{UPSTREAM}/0000:17:03.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0",
    "0000:2a:00.0": "/sys/devices/pci0000:15/0000:15:03.0/0000:2a:00.0",
    "0000:3a:00.0": "/sys/devices/pci0000:37/0000:37:01.0/0000:3a:00.0",
    "0000:ca:00.0": "/sys/devices/pci0000:c7/0000:c7:01.0/0000:ca:00.0",
}
HCA = f"{UPSTREAM}/0000:17:00.0/0000:18:00.0"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe12:3456"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
IPV6 = "fd00:0000:0000:0000:0000:0000:0000:0001"


def linked(root: Path, name: str, place: str) -> None:
    """A link of sysfs into /sys/devices."""
    link = root / name.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / place.lstrip("/"))


def machine_with(
    root: Path, *, layer: str = "Ethernet", gids: tuple[tuple[str, str], ...] = ()
) -> Machine:
    """One port of mlx5 with an interface, and GPUs at several distances."""
    port = f"{HCA}/infiniband/mlx5_0/ports/1"
    net = f"{HCA}/net/ens1np0"
    files = {
        f"{HCA}/numa_node": "0\n",
        f"{port}/link_layer": f"{layer}\n",
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"{net}/speed": "400000\n",
        f"{net}/operstate": "up\n",
        f"{net}/mtu": "9000\n",
        f"{net}/dev_port": "0\n",
        "/sys/bus/pci/drivers/mlx5_core/bind": "",
    }
    for number, (gid, kind) in enumerate(gids):
        files[f"{port}/gids/{number}"] = f"{gid}\n"
        if gid != EMPTY:
            files[f"{port}/gid_attrs/types/{number}"] = f"{kind}\n"
            files[f"{port}/gid_attrs/ndevs/{number}"] = "ens1np0\n"
    for address, place in PLACES.items():
        files[f"{place}/numa_node"] = "1\n" if address == "0000:ca:00.0" else "0\n"
    machine = tree(root, files)
    for address, place in PLACES.items():
        linked(root, f"/sys/bus/pci/devices/{address}", place)
    linked(root, "/sys/class/infiniband/mlx5_0", f"{HCA}/infiniband/mlx5_0")
    linked(root, f"{HCA}/infiniband/mlx5_0/device", HCA)
    linked(root, "/sys/class/net/ens1np0", net)
    linked(root, f"{net}/device", HCA)
    linked(root, f"{HCA}/driver", "/sys/bus/pci/drivers/mlx5_core")
    return machine


GPUS = [{"index": n, "pci": f"0000{address}".upper()} for n, address in enumerate(PLACES)]


def test_infiniband_has_no_gid_to_choose_and_its_gpus_are_told_by_the_bus(tmp_path: Path) -> None:
    gids = ((LINK_LOCAL, "IB/RoCE v1"),)
    machine = machine_with(tmp_path, layer="InfiniBand", gids=gids)
    (row,) = rdma.list_rdma(machine, [*GPUS, {"index": 9, "pci": None}, {"index": 10, "pci": "x"}])
    assert row == {
        "device": "mlx5_0",
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "speed_bits_per_s": 400 * 10**9,
        "gid_index": None,
        "gid_type": None,
        "netdev": "ens1np0",
        "numa_node": 0,
        "gpus": [
            {"index": 0, "path": "PIX"},
            {"index": 1, "path": "PXB"},
            {"index": 2, "path": "PHB"},
            {"index": 3, "path": "NODE"},
            {"index": 4, "path": "SYS"},
        ],
    }


V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.mark.parametrize(
    ("gids", "index", "kind"),
    [
        (((LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV4, V1), (IPV4, V2)), 3, V2),
        (((LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV6, V1), (IPV6, V2)), 3, V2),
        (((LINK_LOCAL, V1), (LINK_LOCAL, V2), (EMPTY, ""), (EMPTY, "")), 1, V2),
        (((LINK_LOCAL, V1), (IPV4, V1)), 1, V1),
        (((EMPTY, ""),), None, None),
        ((("nonsense", V2),), None, None),
    ],
)
def test_the_gid_of_roce_is_of_version_2_and_of_an_address_that_is_routed(
    tmp_path: Path, gids: tuple[tuple[str, str], ...], index: int | None, kind: str | None
) -> None:
    (row,) = rdma.list_rdma(machine_with(tmp_path, gids=gids), [])
    assert (row["gid_index"], row["gid_type"], row["netdev"]) == (index, kind, "ens1np0")


TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.1
        /32 host LOCAL
     |-- 10.5.0.1
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.9
        /32 host LOCAL
"""
ROUTES = """Iface	Destination	Gateway	Flags	RefCnt	Use	Metric	Mask	MTU	Window	IRTT
ens1np0	00000000	FE00000A	0003	0	0	0	00000000	0	0	0
ens1np0	0000000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
docker0	0000050A	00000000	0001	0	0	0	0000FFFF	0	0	0
"""
IPV6_OF_KERNEL = """fd000000000000000000000000000001 02 40 00 80  ens1np0
fe800000000000000e42a1fffe123456 02 40 20 80  ens1np0
"""


def test_an_interface_says_its_speed_mtu_addresses_and_place(tmp_path: Path) -> None:
    machine_with(tmp_path)
    machine = tree(
        tmp_path,
        {
            "/proc/net/fib_trie": TRIE,
            "/proc/net/route": ROUTES,
            "/proc/net/if_inet6": IPV6_OF_KERNEL,
            "/sys/class/net/lo/mtu": "65536",
            "/sys/class/net/docker0/speed": "10000",
            "/sys/class/net/docker0/operstate": "down",
            "/sys/class/net/veth12/speed": "10000",
            "/sys/class/net/we?ird/device/x": "",
        },
    )
    card, bridge = sorted(interfaces.list_interfaces(machine), key=lambda row: row["mtu"] is None)
    assert card == {
        "name": "ens1np0",
        "state": "up",
        "speed_bits_per_s": 400 * 10**9,
        "mtu": 9000,
        "addresses": ["10.0.0.1/24", "fd00::1/64"],
        "numa_node": 0,
        "driver": "mlx5_core",
    }
    assert bridge["addresses"] == ["10.5.0.1/16"]
    assert bridge["speed_bits_per_s"] is None, "no card is behind it"


def test_a_vlan_on_a_bond_promises_what_its_cards_do(tmp_path: Path) -> None:
    machine = tree(
        tmp_path,
        {
            "/proc/net/fib_trie": TRIE,
            "/proc/net/route": ROUTES.replace("ens1np0", "bond0.7"),
            "/sys/class/net/bond0.7/speed": "50000",
            "/sys/class/net/bond0.7/lower_bond0/x": "",
            "/sys/class/net/bond0/lower_eth0/x": "",
            "/sys/class/net/eth0/device/x": "",
        },
    )
    found = {row["name"]: row for row in interfaces.list_interfaces(machine)}
    assert found["bond0.7"]["speed_bits_per_s"] == 50 * 10**9
    assert "bond0" not in found, "neither a card nor an address"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", ["10.0.0.1/24"]),
        ("Object \"-json\" is unknown, try \"ip help\".", ["10.0.0.1/24"]),
        ('[{"ifname": "ens1np0"}]', ["10.0.0.1/24"]),
        ('[{},{"ifname":"ens1np0","addr_info":[{"local":"10.9.9.9","prefixlen":32}]}]',
         ["10.9.9.9/32"]),
    ],
)  # fmt: skip
def test_an_older_ip_or_none_leaves_the_kernel_s_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, found: list[str]
) -> None:
    machine = machine_with(tmp_path)
    tree(tmp_path, {"/proc/net/fib_trie": TRIE, "/proc/net/route": ROUTES})
    monkeypatch.setattr(machine, "run", lambda _argv: said)
    rows = {row["name"]: row["addresses"] for row in interfaces.list_interfaces(machine)}
    assert rows["ens1np0"] == found


def host_of(found: dict[str, Any]) -> Any:
    """The facts of a machine with this network, checked against the schema and read."""
    facts = {**lab_facts(), "network": found}
    closed_form.validate(facts, "facts")
    return read_host(facts)


def test_the_facts_satisfy_their_schema_and_are_read_back(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, gids=((IPV4, V1), (IPV4, V2)))
    tree(tmp_path, {"/proc/net/fib_trie": TRIE, "/proc/net/route": ROUTES})
    host = host_of(network.describe_network(machine, GPUS))
    assert host.network_known
    (card,) = host.interfaces
    assert [str(address) for address in card.addresses] == ["10.0.0.1/24"]
    assert not card.down
    (port,) = host.rdma
    assert (port.kind, port.active, port.gid_index, port.near_gpus) == ("roce", True, 1, (0, 1))


def test_facts_of_an_earlier_version_know_nothing_of_the_network() -> None:
    host = host_of({"addresses": ["10.0.0.1"], "default_ipv6": None, "listening": []})
    assert (host.interfaces, host.rdma, host.network_known) == ((), (), False)


def test_an_address_that_is_none_is_passed_over() -> None:
    rows = [{"name": "a", "addresses": ["999.9.9.9/24", "10.0.0.1/24"]}]
    (card,) = host_of({"interfaces": rows, "rdma": []}).interfaces
    assert [str(address) for address in card.addresses] == ["10.0.0.1/24"]
