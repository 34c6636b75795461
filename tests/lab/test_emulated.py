"""A machine with a kernel and two NUMA nodes of its own: served, rebooted, served again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import CHECKOUT, Host, kimi_prov

from kimi_prov.lab import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The shipped inventory's host, served once: as a user's copy of it."""
    inventory = tmp_path_factory.mktemp("qemu") / "inv"
    made = kimi_prov("init", inventory, "--profile", "lab-qemu")
    assert made.returncode == 0, made.stderr
    hosts = yaml.safe_load((CHECKOUT / "inventories" / "lab-qemu" / "hosts.yml").read_text())
    (name,) = hosts["kimi"]["hosts"]
    commands.up(inventory)
    try:
        host = Host(name, hosts["kimi"]["hosts"][name]["lab_address"], inventory)
        done = kimi_prov("apply", inventory, timeout=5400)
        assert done.returncode == 0, done.stdout + done.stderr
        yield host
    finally:
        commands.down(inventory)


def test_the_engine_is_bound_to_one_node_of_two(emulated: Host) -> None:
    plan = json.loads(emulated.ssh("cat /etc/kimi/plan.json"))
    assert plan["instances"][0]["numactl"]
    done = kimi_prov("verify", emulated.inventory, "--format", "json", timeout=3000)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {row["name"]: row for row in report["hosts"][emulated.name]["checks"]}
    assert checks["placement"]["status"] == "ok", checks


def test_the_ram_disk_follows_the_nodes(emulated: Host) -> None:
    assert "mpol=" in emulated.ssh("grep /srv/kimi/ram /proc/mounts")


def test_a_second_apply_changes_nothing(emulated: Host) -> None:
    done = kimi_prov("apply", emulated.inventory, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout + done.stderr


def test_after_a_reboot_it_serves_with_no_hand_on_it(emulated: Host) -> None:
    before = emulated.ssh("cat /proc/sys/kernel/random/boot_id")
    commands.reboot(emulated.inventory, emulated.name)
    end = time.monotonic() + 1800
    while (
        "inactive"
        in (state := emulated.ssh("systemctl is-active kimi-serve@0 || true", check=False))
        or "activating" in state
    ):
        assert time.monotonic() < end, emulated.ssh("journalctl -b -n 50 --no-pager")
        time.sleep(10)
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") != before
    assert emulated.ssh("systemctl is-active kimi-stage srv-kimi-ram.mount").split() == [
        "active",
        "active",
    ]
    done = kimi_prov("verify", emulated.inventory, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
