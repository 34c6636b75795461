"""One model over two hosts, `inventories/lab-group`: applied, asked, harmed once, destroyed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from groups import API_PORT, AT_ONCE_S, CONTROL_PORT, HEAD_UNIT, RANK_UNIT, SERVED, shipped_group
from machines import kimi_prov, newest_run, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from groups import Group
    from machines import Host

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two hosts that are up, and one outside their group."""
    made = shipped_group(tmp_path_factory.mktemp("group") / "inv", "10.93.92")
    made.lab.up()
    yield made
    made.lab.down()


@pytest.fixture(scope="module")
def bare(group: Group) -> dict[str, dict[str, Any]]:
    """What the hosts looked like before."""
    return {host.name: picture(host) for host in group.members}


@pytest.fixture(scope="module")
def served(group: Group, bare: dict[str, dict[str, Any]]) -> Group:
    """The group after one apply that succeeded."""
    assert set(bare) == {"node1", "node2"}
    done = kimi_prov("apply", group.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    return group


def reported(command: str, group: Group) -> dict[str, Any]:
    done = kimi_prov(command, group.lab.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["hosts"])


def knock(host: Host, address: str, port: int, user: str = "root") -> bool:
    """Whether a user's connection to a port is answered."""
    script = f"exec 3<>/dev/tcp/{address}/{port}"
    command = f"runuser -u {user} -- timeout 3 bash -c '{script}' 2>/dev/null; echo $?"
    return host.ssh(command).strip() == "0"


def listening(host: Host) -> set[int]:
    """TCP ports that something listens on at other addresses than loopback's."""
    rows = [line.split()[3] for line in host.ssh("ss -Hltn").splitlines()]
    return {int(row.rpartition(":")[2]) for row in rows if not row.startswith(("127.", "[::1]"))}


def test_the_plan_names_the_same_group_on_both(served: Group) -> None:
    planned = {name: row["group"] for name, row in reported("plan", served).items()}
    for rank, host in enumerate(served.members):
        assert json.loads(host.ssh("cat /etc/kimi/plan.json"))["group"] == planned[host.name]
        assert planned[host.name]["rank"] == rank
        assert planned[host.name]["address"] == host.address
    own = {"rank", "address", "peers"}
    one, other = (
        {key: value for key, value in planned[host.name].items() if key not in own}
        for host in served.members
    )
    assert one == other
    assert [row["address"] for row in one["members"]] == [h.address for h in served.members]
    assert planned["node1"]["peers"] == [served.members[1].address]


def test_it_answers_through_the_heads_port(served: Group) -> None:
    assert served.chat().status == SERVED


def test_both_hosts_compute_each_answer(served: Group) -> None:
    def worked() -> list[int]:
        return [int(served.show(host, "CPUUsageNSec")) for host in served.members]

    before = worked()
    assert served.chat().status == SERVED
    assert all(now > was for now, was in zip(worked(), before, strict=True))


def test_it_passes_verify_with_the_network_between_them(
    served: Group, record_property: Callable[[str, object], None]
) -> None:
    checks = {row["name"]: row for row in reported("verify", served)["node1"]["checks"]}
    assert checks["chat"]["status"] == "ok"
    assert checks["network"]["status"] == "ok"
    record_property("network", checks["network"]["detail"])


def test_status_shows_both(served: Group) -> None:
    found = reported("status", served)
    assert {name: row["ok"] for name, row in found.items()} == {"node1": True, "node2": True}
    assert found["node1"]["units"][HEAD_UNIT]["state"] == "active"
    assert found["node2"]["units"][RANK_UNIT]["state"] == "active"


def test_a_second_apply_changes_nothing(served: Group) -> None:
    before = served.starts()
    done = kimi_prov("apply", served.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(served.lab.inventory) / "result.json").read_text())
    changed = {name: row["changed"] for name, row in result["hosts"].items()}
    assert changed == {"node1": 0, "node2": 0}
    assert served.starts() == before


def test_a_rank_has_no_proxy_and_no_serving_port(served: Group) -> None:
    rank = served.members[1]
    assert API_PORT in listening(served.head)
    assert API_PORT not in listening(rank)
    assert rank.ssh("ss -Hltn 'sport = :8001'").strip() == ""
    assert "kimi-proxy" not in rank.ssh("systemctl list-unit-files --no-legend")


def test_the_groups_ports_are_open_to_its_members_alone(served: Group) -> None:
    head, rank = served.members
    client = served.lab.hosts["client"]
    assert knock(rank, head.address, CONTROL_PORT)
    assert not knock(rank, head.address, CONTROL_PORT, "games")
    for host in served.members:
        of_group = sorted(port for port in listening(host) if port >= CONTROL_PORT)
        assert of_group
        assert [port for port in of_group if knock(client, host.address, port)] == []


def test_when_the_ranks_engine_is_killed_the_group_serves_again(
    served: Group, record_property: Callable[[str, object], None]
) -> None:
    rank = served.members[1]
    worker = served.worker(rank)
    recovery = served.harmed(lambda: rank.ssh(f"kill -9 {worker}"))
    record_property("served again after", str(recovery))
    # While it starts, the head's port refuses at once.
    assert recovery.refused_s
    assert max(recovery.refused_s) < AT_ONCE_S


def test_destroy_leaves_nothing_on_both(served: Group, bare: dict[str, dict[str, Any]]) -> None:
    done = kimi_prov("destroy", served.lab.inventory, "--yes", "--purge-weights")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in served.members:
        before, after = bare[host.name], dict[str, Any](picture(host))
        for part in ("mounts", "nft", "listening", "sysctls"):
            assert after[part] == before[part], part
        named = [*after["units"], *after["running"], *after["users"]]
        assert [text for text in named if "kimi" in text] == []
        left = {path for path in after["files"] if "kimi" in path} - set(before["files"])
        assert left == set()
        assert host.ssh("ls -d /run/kimi* /srv/kimi 2>/dev/null || true").strip() == ""
