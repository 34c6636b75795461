"""A machine with a kernel and two NUMA nodes of its own: an engine on each, killed, rebooted."""

from __future__ import annotations

import json
import shlex
import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import CHECKOUT, Host, kimi_prov

from kimi_prov.lab import operations

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
    operations.start_lab(inventory)
    try:
        host = Host(name, hosts["kimi"]["hosts"][name]["lab_address"], inventory)
        done = kimi_prov("apply", inventory, timeout=9000)
        assert done.returncode == 0, done.stdout + done.stderr
        yield host
    finally:
        operations.remove_lab(inventory)


# A chat of one token through the port, with the key by which the machine tests itself.
CHAT = """
import json, ssl, urllib.request
body = {"model": "kimi-k2-lab", "max_tokens": 1, "messages": [{"role": "user", "content": "1"}]}
key = open("/etc/kimi/keys/verify.key").read().strip()
request = urllib.request.Request(
    "https://127.0.0.1:8000/v1/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + key, "Content-Type": "application/json"},
)
context = ssl._create_unverified_context()
print(urllib.request.urlopen(request, timeout=600, context=context).read().decode())
"""


def chat(host: Host) -> dict:
    return json.loads(host.ssh(f"python3 -c {shlex.quote(CHAT)}", timeout=900))


def waited_for(host: Host, unit: str, seconds: float = 3600) -> None:
    """Wait until a unit is active; one that failed for good ends the wait."""
    end = time.monotonic() + seconds
    while (state := host.ssh(f"systemctl is-active {unit}", check=False).strip()) != "active":
        assert state != "failed", host.ssh(f"journalctl -b -u {unit} -n 50 --no-pager")
        assert time.monotonic() < end, host.ssh("journalctl -b -n 50 --no-pager")
        time.sleep(10)


def test_each_node_has_an_engine_bound_to_it(emulated: Host) -> None:
    plan = json.loads(emulated.ssh("cat /etc/kimi/plan.json"))
    assert [row["numactl"][1:] for row in plan["instances"]] == [
        ["--cpunodebind=0", "--membind=0"],
        ["--cpunodebind=1", "--membind=1"],
    ]
    done = kimi_prov("verify", emulated.inventory, "--format", "json", timeout=3000)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {row["name"]: row for row in report["hosts"][emulated.name]["checks"]}
    assert checks["placement"]["status"] == "ok", checks


def test_the_ram_disk_follows_the_nodes(emulated: Host) -> None:
    assert "mpol=" in emulated.ssh("grep /srv/kimi/ram /proc/mounts")


def test_a_second_apply_changes_nothing(emulated: Host) -> None:
    done = kimi_prov("apply", emulated.inventory, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout + done.stderr


def test_a_restart_takes_one_engine_after_the_other(emulated: Host) -> None:
    units = ("kimi-serve@0", "kimi-serve@1")

    def starts() -> list[str]:
        return [emulated.ssh(f"systemctl show -P InvocationID {unit}").strip() for unit in units]

    before, failed, answered = starts(), [], []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                answered.append(chat(emulated)["choices"])
            except AssertionError as error:
                failed.append(str(error))

    client = threading.Thread(target=ask)
    client.start()
    try:
        done = kimi_prov("restart", emulated.inventory, timeout=9000)
    finally:
        over.set()
        client.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not set(starts()) & set(before)
    assert answered
    assert failed == []


def test_one_engine_killed_the_port_still_answers(emulated: Host) -> None:
    emulated.ssh("systemctl kill -s KILL kimi-serve@0")
    assert emulated.ssh("systemctl is-active kimi-serve@0", check=False).strip() != "active"
    assert chat(emulated)["choices"], "the other engine shall answer meanwhile"
    # Its own answer, a quarter of an hour later here, is what the tests of containers wait for.
    state = emulated.ssh("systemctl is-active kimi-serve@0", check=False).strip()
    assert state == "activating", "it is started again"


def test_after_a_reboot_it_serves_with_no_hand_on_it(emulated: Host) -> None:
    before = emulated.ssh("cat /proc/sys/kernel/random/boot_id")
    operations.restart_host(emulated.inventory, emulated.name)
    for unit in ("srv-kimi-ram.mount", "kimi-stage", "kimi-serve@0", "kimi-serve@1"):
        waited_for(emulated, unit)
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") != before
    done = kimi_prov("verify", emulated.inventory, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_node_without_room_is_refused_before_anything_starts(emulated: Host) -> None:
    """The memory of node 1 is taken by a tmpfs; nothing of ours runs at that time."""
    taken = "mount -t tmpfs -o size=3500m,mpol=bind:1 taken /mnt"
    emulated.ssh("systemctl stop 'kimi-serve@*' kimi-stage srv-kimi-ram.mount", timeout=600)
    emulated.ssh(f"{taken} && dd if=/dev/zero of=/mnt/x bs=1M count=3000 status=none", timeout=600)
    try:
        done = kimi_prov("apply", emulated.inventory, timeout=1200)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "node 1" in done.stdout + done.stderr
        state = emulated.ssh("systemctl is-active kimi-serve@0", check=False).strip()
        assert state in {"inactive", "failed"}, "an engine that is stopped as it starts is killed"
    finally:
        emulated.ssh("umount /mnt")
