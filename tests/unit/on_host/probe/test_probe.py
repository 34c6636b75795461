"""The probe against the machine itself by another way, and against recorded trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest
from machine_of_files import tree

from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.on_host.probe import collect, gpu, network, software, system
from kimi_prov.on_host.probe import cpu as probe_cpu
from kimi_prov.on_host.probe import memory as probe_memory
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

LIVE = Machine()


def test_memory_is_what_psutil_says() -> None:
    memory = probe_memory.describe_memory(LIVE, system.read_shm_bytes(LIVE))
    assert memory["total_bytes"] == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    assert memory["swap_total_bytes"] == psutil.swap_memory().total


def test_the_highest_clock_stands_where_the_name_tells_none(tmp_path: Path) -> None:
    highest = {"/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3707812"}
    assert probe_cpu.describe_cpu(tree(tmp_path, highest))["frequency_hz"] == 3_707_812_000
    named = {"/proc/cpuinfo": "model name\t: Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz\n"}
    assert probe_cpu.describe_cpu(tree(tmp_path, highest | named))["frequency_hz"] == 2_000_000_000


def test_disks_are_what_psutil_says() -> None:
    by_mount = {row["mount"]: row for row in system.list_filesystems(LIVE)}
    assert by_mount
    for mount, row in by_mount.items():
        assert row["total_bytes"] == psutil.disk_usage(mount).total


def test_room_on_a_disk_is_what_its_users_get(tmp_path: Path) -> None:
    """Not what is kept for root. Asked until nobody wrote meanwhile."""

    def free() -> set[tuple[str, int]]:
        mounts = [row["mount"] for row in system.list_filesystems(LIVE)]
        return {(mount, psutil.disk_usage(mount).free) for mount in mounts}

    seen: set[tuple[str, int]] = set()
    for _ in range(200):
        before = free()
        ours = {(row["mount"], row["free_bytes"]) for row in system.list_filesystems(LIVE)}
        quiet = before & free()
        assert quiet <= ours
        seen |= quiet
        if {mount for mount, _ in before} == {mount for mount, _ in seen}:
            return
    pytest.fail(f"something writes to every disk all the time: {seen}")


def test_an_empty_tree_is_all_unknown(tmp_path: Path) -> None:
    facts = collect.collect(Machine(str(tmp_path)))
    assert facts["cpu"]["model"] is None
    assert facts["cpu"]["isa"] is None
    assert facts["memory"]["total_bytes"] is None
    assert facts["numa"]["nodes"] == []
    assert facts["nvidia"] is None
    assert facts["packages"]["installed"] is None


def test_hyperthreads_are_not_cores(tmp_path: Path) -> None:
    files = {"/sys/devices/system/cpu/online": "0-3"}
    for cpu in range(4):
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{base}/physical_package_id"] = "0"
        files[f"{base}/thread_siblings_list"] = f"{cpu % 2},{cpu % 2 + 2}"
    files["/proc/cpuinfo"] = "model name\t: EPYC\nflags\t\t: avx2 avx512f\n\nprocessor: 1\n"
    cpu = probe_cpu.describe_cpu(tree(tmp_path, files))
    assert (cpu["sockets"], cpu["cores"], cpu["threads"]) == (1, 2, 4)
    assert cpu["primary"] == "0-1"
    assert cpu["isa"] == ["avx2", "avx512f"]


def test_nodes_with_memory_and_distances(tmp_path: Path) -> None:
    node = "/sys/devices/system/node/node"
    machine = tree(
        tmp_path,
        {
            "/sys/devices/system/cpu/online": "0-3",
            f"{node}0/cpulist": "0-1",
            f"{node}0/distance": "10 21",
            f"{node}0/meminfo": "Node 0 MemTotal:  4096 kB\nNode 0 MemFree:   1024 kB\n",
            f"{node}1/cpulist": "2-3",
            f"{node}1/distance": "21 10",
            f"{node}1/meminfo": "Node 1 MemTotal:  8192 kB\nNode 1 MemFree:   2048 kB\n",
        },
    )
    nodes = probe_cpu.describe_numa(machine)["nodes"]
    assert [n["memory_total_bytes"] for n in nodes] == [4 << 20, 8 << 20]
    assert [n["cpus"] for n in nodes] == ["0-1", "2-3"]
    assert nodes[1]["distances"] == [21, 10]


@pytest.mark.parametrize(
    ("path", "text", "limit"),
    [
        ("/sys/fs/cgroup/memory.max", "max", None),
        ("/sys/fs/cgroup/memory.max", "1073741824", 1 << 30),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712", None),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648", 2 << 30),
    ],
)
def test_the_limit_of_a_container(tmp_path: Path, path: str, text: str, limit: int) -> None:
    machine = tree(tmp_path, {path: text, "/proc/meminfo": "MemTotal:  16777216 kB\n"})
    assert probe_memory.describe_memory(machine, None)["cgroup_limit_bytes"] == limit


def test_sockets_are_read_in_both_families(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    row = "   0: {} {}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {} 1\n"
    machine = tree(
        tmp_path,
        {
            "/proc/net/tcp": head + row.format("0100007F:1F40", "00000000", 11),
            "/proc/net/tcp6": head + row.format("0" * 32 + ":0016", "0" * 32, 12),
        },
    )
    rows = network.describe_network(machine)["listening"]
    assert [(r["port"], r["address"], r["process"]) for r in rows] == [
        (22, "::", None),
        (8000, "127.0.0.1", None),
    ]


@pytest.mark.parametrize(("switch", "state"), [("yes", "active"), ("no", "inactive")])
def test_ufw_is_told_by_its_switch(tmp_path: Path, switch: str, state: str) -> None:
    machine = tree(tmp_path, {"/usr/sbin/ufw": "", "/etc/ufw/ufw.conf": f"ENABLED={switch}\n"})
    (tmp_path / "usr/sbin/ufw").chmod(0o755)
    assert network.describe_firewall(machine, {})["ufw"] == state
    assert network.describe_firewall(machine, {})["firewalld"] == "absent"


def test_only_installed_packages_count(tmp_path: Path) -> None:
    status = (
        "Package: haproxy\nStatus: install ok installed\nVersion: 2.6\n\n"
        "Package: nftables\nStatus: deinstall ok config-files\nVersion: 1.0\n\n"
        "Package: bash\nStatus: install ok installed\nVersion: 5\n\n"
        # Wanted by an engine for another Python than the system's.
        "Package: python3.12-venv\nStatus: install ok installed\nVersion: 3.12.3\n"
    )
    machine = tree(tmp_path, {"/var/lib/dpkg/status": status})
    found = software.describe_packages(machine, software.Packages(machine))
    assert found["installed"] == {"haproxy": "2.6", "python3.12-venv": "3.12.3"}


def test_a_card_without_a_driver_is_seen(tmp_path: Path) -> None:
    base = "/sys/bus/pci/devices/0000:01:00.0"
    machine = tree(tmp_path, {f"{base}/vendor": "0x10de", f"{base}/class": "0x030200"})
    cards = gpu.Nvidia(machine)
    seen = cards.facts(cards.gpus(), software.Packages(machine), {})
    assert seen is not None
    assert (seen["pci_devices"], seen["driver_loaded"]) == (1, None)
    assert cards.gpus() == []


def test_a_container_has_the_cards_of_its_machine_that_the_driver_lists(tmp_path: Path) -> None:
    files = {}
    for address, kind in (
        ("01:00.0", "0x030200"),
        ("02:00.0", "0x030200"),
        ("03:00.0", "0x068000"),
    ):
        base = f"/sys/bus/pci/devices/0000:{address}"
        files |= {f"{base}/vendor": "0x10de", f"{base}/class": kind, f"{base}/device": "0x2335"}
    machine = tree(tmp_path, files)
    cards, packages = gpu.Nvidia(machine), software.Packages(machine)
    listed = [{"index": 0, "pci": "00000000:02:00.0", "fabric_state": "Completed"}]
    own, everything, unlisted = (
        cards.facts(rows, packages, {}, container=container) or {}
        for rows, container in ((listed, True), (listed, False), ([], True))
    )
    assert (own["pci_devices"], own["pci_ids"], own["nvswitch_devices"]) == (1, ["2335"], 1)
    assert own["nvswitch"]
    assert (everything["pci_devices"], everything["nvswitch_devices"]) == (2, 1)
    assert unlisted["pci_devices"] == 2


@pytest.mark.parametrize("text", ["0-3,8", "5", "0,2,4-6", ""])
def test_lists_are_read_and_written_alike(text: str) -> None:
    assert format_list(parse_list(text)) == text
