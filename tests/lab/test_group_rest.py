"""One model over two hosts, stopped, started and restarted by one command each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from groups import REFUSED, SERVED, START_S, make_group
from machines import kimi_prov
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from groups import Group

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two hosts that serve."""
    made = make_group(tmp_path_factory.mktemp("rest") / "inv", "10.93.94", 2)
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
