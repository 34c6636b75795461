"""One model over two hosts, `inventories/lab-group`: applied, asked, harmed once, destroyed.

Both show metrics, and the head watches itself and the rank.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from groups import (
    API_PORT,
    AT_ONCE_S,
    CONTROL_PORT,
    HEAD_UNIT,
    RANK_UNIT,
    SERVED,
    START_S,
    answered,
    shipped_group,
)
from machines import kimi_prov, newest_run, picture
from monitored import METRICS_PORT, prometheus, read_metrics
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from groups import Group
    from machines import Host

pytestmark = pytest.mark.lab
NETWORK = "10.93.92"
# What the head reads of both.
TARGETS = {
    *(("node1", job) for job in ("kimi-node", "kimi-proxy", "kimi-engine")),
    *(("node2", job) for job in ("kimi-node", "kimi-proxy")),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two hosts that are up, and one outside their group."""
    made = shipped_group(tmp_path_factory.mktemp("group") / "inv", NETWORK)
    shown = {"kimi_metrics": True, "kimi_metrics_networks": [f"{NETWORK}.1/32"]}
    watched = yaml.safe_dump({**shown, "kimi_monitor_local": True, "monitor_scrape_interval_s": 5})
    settings = made.lab.inventory / "group_vars" / "kimi.yml"
    settings.write_text(settings.read_text() + watched)
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
    alike = ("name", "size", "members", "control_port", "master_port", "digest")
    one, other = ({key: planned[host.name][key] for key in alike} for host in served.members)
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
    for row in found.values():
        assert row["units"]["kimi-proxy.service"]["state"] == "active"
        assert row["metrics"]["port"] == METRICS_PORT
        assert row["metrics"]["listening"]
    assert found["node2"]["port"] is None


def test_a_second_apply_changes_nothing(served: Group) -> None:
    before = served.starts()
    done = kimi_prov("apply", served.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(served.lab.inventory) / "result.json").read_text())
    changed = {name: row["changed"] for name, row in result["hosts"].items()}
    assert changed == {"node1": 0, "node2": 0}
    assert served.starts() == before


def test_a_rank_has_no_serving_port_and_no_key_of_a_client(served: Group) -> None:
    rank = served.members[1]
    assert API_PORT in listening(served.head)
    assert API_PORT not in listening(rank)
    assert rank.ssh("ss -Hltn 'sport = :8001'").strip() == ""
    assert "kimi-usage" not in rank.ssh("systemctl list-unit-files --no-legend")
    assert rank.ssh("ls /etc/kimi/keys").split() == ["metrics.key"]


def test_both_show_their_machine_to_who_has_the_key_of_each(served: Group) -> None:
    keys = {
        host.name: host.ssh("cat /etc/kimi/keys/metrics.key").strip() for host in served.members
    }
    assert len({*keys.values()}) == len(keys)
    client = served.lab.hosts["client"]
    for host, other in (served.members, served.members[::-1]):
        status, text = read_metrics(host, "/metrics/node", keys[host.name])
        assert status == 200
        assert "node_cpu_seconds_total" in text
        assert "kimi_weights_verified 1" in text
        assert 'kimi_instance_active{engine="0"} 1' in text
        assert read_metrics(host, "/metrics/proxy", keys[host.name])[0] == 200
        for wrong in (None, keys[other.name]):
            assert read_metrics(host, "/metrics/node", wrong)[0] == 401
        assert answered(client, host.address, {METRICS_PORT}) == set()
    head, rank = served.members
    assert "vllm:" in read_metrics(head, "/metrics/engine/0", keys[head.name])[1]
    assert read_metrics(rank, "/metrics/engine/0", keys[rank.name])[0] == 404
    members = read_metrics(head, "/metrics/node", keys[head.name])[1]
    assert 'kimi_group_member_up{member="node2"} 1' in members


def test_the_head_watches_both(served: Group) -> None:
    def up() -> set[tuple[str, str]]:
        rows = prometheus(served.head, "/api/v1/targets")["activeTargets"]
        assert {(row["labels"]["host"], row["labels"]["job"]) for row in rows} == TARGETS
        return {
            (row["labels"]["host"], row["labels"]["job"]) for row in rows if row["health"] == "up"
        }

    assert until(lambda: up() == TARGETS, START_S, every_s=2), up()
    text = served.head.ssh("cat /etc/kimi-monitor/prometheus.yml")
    assert f"{served.members[1].address}:{METRICS_PORT}" in text
    assert "kimi-prometheus" not in served.members[1].ssh("systemctl list-unit-files --no-legend")


def test_the_groups_ports_are_open_to_its_members_alone(served: Group) -> None:
    head, rank = served.members
    client = served.lab.hosts["client"]
    control = {CONTROL_PORT}
    assert answered(rank, head.address, control) == control
    assert answered(rank, head.address, control, "games") == set()
    for host in served.members:
        # Those that the kernel chose for the engine are among them.
        of_group = {port for port in listening(host) if port >= CONTROL_PORT}
        assert of_group > control if host is head else of_group
        assert answered(client, host.address, of_group) == set()


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


@pytest.mark.slow
def test_metrics_that_are_no_longer_wished_for_go_from_both_and_the_engines_stay(
    served: Group, tmp_path: Path
) -> None:
    """With a rank's proxy, which was there for them alone, and what the head watched with."""
    before = served.starts()
    off = tmp_path / "off.yml"
    off.write_text("kimi_metrics: false\nkimi_monitor_local: false\n")
    for changed in (True, False):
        done = kimi_prov("apply", served.lab.inventory, "-e", f"@{off}")
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((newest_run(served.lab.inventory) / "result.json").read_text())
        assert all(bool(row["changed"]) == changed for row in result["hosts"].values()), result
    gone = "metrics|node-exporter|prometheus|alertmanager|monitor"
    for host in served.members:
        assert host.ssh(f"ls /etc/systemd/system | grep -E 'kimi-({gone})' || true") == ""
        assert "kimi-monitor" not in host.ssh("ls /etc /var/lib; getent passwd; getent group")
        assert host.ssh("ls /var/lib/kimi/metrics/kimi.prom 2>/dev/null || true") == ""
        assert not listening(host) & {METRICS_PORT, 9090, 9093}
        assert host.ssh("ss -Hltn 'sport = :9090 or sport = :9093'").strip() == ""
        rules = host.ssh("nft list ruleset")
        assert "kimi_monitor" not in rules
        assert str(METRICS_PORT) not in rules
    rank = served.members[1]
    assert "kimi-proxy" not in rank.ssh("systemctl list-unit-files --no-legend")
    assert served.starts() == before
    assert served.chat().status == SERVED
    drift = kimi_prov("drift", served.lab.inventory)
    assert drift.returncode == 0, drift.stdout


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
