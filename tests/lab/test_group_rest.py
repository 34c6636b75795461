"""One model over two hosts, stopped, started and restarted by one command each, and at rest.

At the end a host that only watches reads them, the rank behind ufw and behind firewalld.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from firewalls import DISABLED, ENABLED, RELOADED
from groups import (
    API_PORT,
    CONTROL_PORT,
    REFUSED,
    SERVED,
    START_S,
    answered,
    make_group,
)
from machines import kimi_prov, newest_run
from monitored import METRICS_PORT, prometheus
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from groups import Group
    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
NETWORK = "10.93.94"
# After those of the two that serve.
WATCHER_ADDRESS = f"{NETWORK}.13"
TARGETS = {
    *(("head", job) for job in ("kimi-node", "kimi-proxy", "kimi-engine")),
    *(("rank1", job) for job in ("kimi-node", "kimi-proxy")),
}
# Without a request, before the group rests.
IDLE = "20s"
LISTED = {"ufw": "ufw status", "firewalld": "firewall-cmd --list-rich-rules"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two hosts that serve."""
    inventory = tmp_path_factory.mktemp("rest") / "inv"
    made = make_group(inventory, NETWORK, 2, outsiders=["watcher", "stranger"])
    made.lab.up()
    try:
        done = kimi_prov("apply", made.lab.inventory)
        assert done.returncode == 0, done.stdout + done.stderr
        yield made
    finally:
        made.lab.down()


def states(group: Group) -> dict[str, str]:
    return {host.name: group.show(host, "ActiveState") for host in group.members}


def status(group: Group) -> tuple[int, dict[str, Any]]:
    done = kimi_prov("status", group.lab.inventory, "--format", "json")
    return done.returncode, json.loads(done.stdout)["hosts"]


def test_a_stop_frees_both_hosts_and_a_start_has_both_serve(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    stopped = kimi_prov("stop", group.lab.inventory)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert states(group) == {"head": "inactive", "rank1": "inactive"}
    assert group.chat().status == REFUSED
    code, hosts = status(group)
    assert code == 0, hosts
    assert {name: row["state"] for name, row in hosts.items()} == {
        "head": "stopped",
        "rank1": "stopped",
    }
    # A rank that boots does not start alone.
    group.members[-1].ssh("systemctl start kimi-rank", check=False)
    assert states(group)["rank1"] == "inactive"

    started = kimi_prov("start", group.lab.inventory)
    assert started.returncode == 0, started.stdout + started.stderr
    record_property("start of both", started.stdout.strip())
    assert group.chat().status == SERVED
    assert status(group)[0] == 0


def test_one_host_alone_is_neither_stopped_nor_started(group: Group) -> None:
    for command in ("stop", "restart"):
        done = kimi_prov(command, group.lab.inventory, "--limit", "rank1")
        assert done.returncode != 0
        assert "stop and start together" in " ".join((done.stdout + done.stderr).split())
    assert group.chat().status == SERVED


def test_a_restart_takes_both_and_each_request_is_answered_or_told_why(group: Group) -> None:
    before = group.starts()
    with group.asked() as seen:
        done = kimi_prov("restart", group.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert until(lambda: group.chat().status == SERVED, START_S), group.told()
    assert [name for name, start in group.starts().items() if start == before[name]] == []
    assert {answer.status for answer in seen} <= {SERVED, REFUSED}


@pytest.fixture
def resting(group: Group) -> Iterator[Group]:
    """The group, which rests soon when nobody asks, and holds who wakes it."""
    settings = group.lab.inventory / "group_vars" / "kimi.yml"
    before = settings.read_text()
    settings.write_text(before + yaml.safe_dump({"kimi_idle_stop": IDLE, "kimi_wake": "hold"}))
    try:
        done = kimi_prov("apply", group.lab.inventory)
        assert done.returncode == 0, done.stdout + done.stderr
        yield group
    finally:
        settings.write_text(before)
        done = kimi_prov("apply", group.lab.inventory)
        assert done.returncode == 0, done.stdout + done.stderr


def asleep(group: Group) -> bool:
    """Whether the head sleeps, and the rank has no engine and waits."""
    code, hosts = status(group)
    return code == 0 and {row["state"] for row in hosts.values()} == {"asleep"}


def test_both_rest_when_nobody_asks_and_wake_for_who_asks(
    resting: Group, record_property: Callable[[str, object], None]
) -> None:
    head, rank = resting.members
    seen: list[tuple[int, dict[str, Any]]] = []

    def rests() -> bool:
        seen.append(status(resting))
        return {row["state"] for row in seen[-1][1].values()} == {"asleep"}

    assert until(rests, START_S, every_s=0), seen[-1]
    # Who watches is told of no fault while they fall asleep, and the rank starts to wait anew.
    assert until(lambda: not rests() or states(resting)["rank1"] == "active", START_S, every_s=0)
    assert [found for found in seen if found[0] != 0] == []
    assert states(resting) == {"head": "inactive", "rank1": "active"}
    assert not resting.runs_engine(rank)
    # A rank whose unit starts anew waits for its head as before.
    pid = resting.show(rank, "MainPID")
    rank.ssh("systemctl restart kimi-rank")
    assert until(lambda: asleep(resting), START_S, every_s=2), status(resting)
    assert resting.show(rank, "MainPID") != pid

    # Verify's key wakes nobody, and what asks by it is no use.
    assert resting.chat().status == REFUSED
    added = kimi_prov("key", resting.lab.inventory, "--add", "asker")
    assert added.returncode == 0, added.stdout + added.stderr
    woken = resting.chat(START_S, added.stdout.split()[-1])
    record_property("from the first request to its answer, of both", round(woken.took_s, 1))
    assert woken.status == SERVED, resting.told()
    code, hosts = status(resting)
    assert code == 0, hosts
    assert {row["state"] for row in hosts.values()} == {"serving"}

    # A person's stop of a group that sleeps is a stop, which no request ends.
    assert until(lambda: asleep(resting), START_S, every_s=2), status(resting)
    stopped = kimi_prov("stop", resting.lab.inventory)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert states(resting) == {"head": "inactive", "rank1": "inactive"}
    assert resting.chat().status == REFUSED
    # And an apply of one that is stopped or asleep starts it: the fixture's end.
    assert "stopped.json" in head.ssh("ls /var/lib/kimi/state")


@pytest.fixture(scope="module")
def watcher(group: Group) -> Host:
    """A host that only watches, in the inventory from now on."""
    hosts, settings = (group.lab.inventory / name for name in ("hosts.yml", "group_vars/kimi.yml"))
    document = yaml.safe_load(hosts.read_text())
    document["all"]["children"]["kimi_monitor"] = {"hosts": {"watcher": {}}}
    hosts.write_text(yaml.safe_dump(document))
    shown = {"kimi_metrics": True, "kimi_metrics_networks": [f"{WATCHER_ADDRESS}/32"]}
    settings.write_text(settings.read_text() + yaml.safe_dump(shown))
    options = group.lab.inventory / "group_vars" / "kimi_monitor.yml"
    options.write_text(yaml.safe_dump({"monitor_scrape_interval_s": 5}))
    host = group.lab.hosts["watcher"]
    assert host.address == WATCHER_ADDRESS
    return host


@pytest.fixture(params=["ufw", "firewalld"])
def manager(request: pytest.FixtureRequest, group: Group) -> Iterator[str]:
    """What drops on the rank what it is not told to let in."""
    rank, name = group.members[-1], str(request.param)
    rank.ssh(
        "(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy "
        f"--no-install-recommends netbase {name}) >/dev/null 2>&1",
        timeout=400,
    )
    rank.ssh(ENABLED[name])
    yield name
    rank.ssh(DISABLED[name])


def test_a_rank_behind_a_firewall_manager_serves_and_is_read_by_who_only_watches(
    group: Group, watcher: Host, manager: str
) -> None:
    head, rank = group.members
    done = kimi_prov("apply", group.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr

    def up() -> set[tuple[str, str]]:
        rows = prometheus(watcher, "/api/v1/targets")["activeTargets"]
        found = {(row["labels"]["host"], row["labels"]["job"]): row["health"] for row in rows}
        assert set(found) == TARGETS
        return {target for target, health in found.items() if health == "up"}

    def stands() -> None:
        assert until(lambda: up() == TARGETS, START_S, every_s=2), up()
        own = {METRICS_PORT, CONTROL_PORT, API_PORT}
        assert answered(watcher, rank.address, own) == {METRICS_PORT}
        assert answered(group.lab.hosts["stranger"], rank.address, own) == set()
        assert group.chat().status == SERVED

    # They find each other anew, at ports that the kernel chooses.
    done = kimi_prov("restart", group.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert until(lambda: group.chat().status == SERVED, START_S), group.told()
    stands()
    rules = rank.ssh(LISTED[manager])
    assert head.address in rules
    assert WATCHER_ADDRESS in rules
    assert str(API_PORT) not in rules
    rank.ssh(RELOADED[manager])
    stands()
    done = kimi_prov("apply", group.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(group.lab.inventory) / "result.json").read_text())
    assert {name: row["changed"] for name, row in result["hosts"].items()} == {
        "head": 0,
        "rank1": 0,
        "watcher": 0,
    }
