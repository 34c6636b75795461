"""Metrics of a served host, and a host that watches it: all of them the distribution's programs.

The engine is the real one of the lab, on processors; there is no GPU (tests/unit/on_host/metrics
has what a real nvidia-smi answered). A container may not ask the kernel how its clock is kept, so
`kimi_clock_synchronised` is not shown there.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from machines import Host, Lab, kimi_prov, newest_run
from monitored import monitored_lab, own_metrics, prometheus, receiving, targets
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NETWORK = "10.93.121"
PATHS = ("node", "proxy", "engine/0")
# What the lab's host has of the agreed names: others want GPUs, a group or a predicted speed.
NAMES = {
    "kimi_plan_info",
    "kimi_weights_verified",
    "kimi_weights_bytes",
    "kimi_ram_disk_planned",
    "kimi_ram_disk_filled",
    "kimi_certificate_expires_timestamp_seconds",
    "kimi_instance_active",
    "kimi_instance_starting",
    "kimi_instance_starting_seconds",
    "kimi_instance_last_start_seconds",
    "kimi_instance_start_limit_seconds",
    "kimi_instance_starts_total",
    "kimi_expected_concurrency",
    "kimi_updates_waiting",
    "kimi_metrics_written_timestamp_seconds",
}
ASK = """
import http.client, ssl, sys
address, path, key, method = sys.argv[1:5]
connection = http.client.HTTPSConnection(
    address, 9443, timeout=10, context=ssl._create_unverified_context()
)
try:
    connection.request(method, path, headers={"Authorization": "Bearer " + key} if key else {})
    answer = connection.getresponse()
    print(answer.status)
    print(answer.read().decode())
except OSError as error:
    print(0)
    print(error)
"""


def ask(host: Host, path: str, key: str, address: str = "127.0.0.1") -> tuple[int, str]:
    """Status (0 where the port is closed) and text of a page of the metrics, asked from a host."""
    done = host.ssh(
        f"cat > /tmp/ask.py <<'EOF'\n{ASK}\nEOF\npython3 /tmp/ask.py {address} {path} '{key}' GET"
    )
    status, _, text = done.partition("\n")
    return int(status), text


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host that serves and shows metrics, one that watches, and one that may do neither."""
    made = monitored_lab(tmp_path_factory.mktemp("watched") / "inv", NETWORK, ["client"])
    made.up()
    try:
        done = kimi_prov("apply", made.inventory)
        assert done.returncode == 0, done.stdout + done.stderr
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def node(lab: Lab) -> Host:
    return lab.hosts["node1"]


@pytest.fixture(scope="module")
def watcher(lab: Lab) -> Host:
    return lab.hosts["watcher"]


@pytest.fixture(scope="module")
def key(node: Host) -> str:
    return node.ssh("cat /etc/kimi/keys/metrics.key").strip()


pytestmark = pytest.mark.slow


def test_all_kinds_are_read_with_the_key_from_a_network_that_may(
    lab: Lab, node: Host, watcher: Host, key: str
) -> None:
    texts = {path: ask(watcher, f"/metrics/{path}", key, node.address) for path in PATHS}
    assert {path: status for path, (status, _) in texts.items()} == dict.fromkeys(PATHS, 200)
    assert "vllm:num_requests_running" in texts["engine/0"][1]
    assert "haproxy_frontend_http_requests_total" in texts["proxy"][1]
    shown = set(re.findall(r"^(kimi_\w+)", texts["node"][1], re.MULTILINE))
    assert shown >= NAMES
    assert "node_cpu_seconds_total" in texts["node"][1]
    assert "node_textfile_scrape_error 0" in texts["node"][1]
    for path in PATHS:
        assert ask(watcher, f"/metrics/{path}", "", node.address)[0] == 401
    assert ask(watcher, "/metrics/engine/0/v1/models", key, node.address)[0] == 404
    # Its packets are dropped; the API's networks are others still.
    assert ask(lab.hosts["client"], "/metrics/node", key, node.address)[0] == 0


def test_the_exporter_is_the_proxys_alone_and_the_distributions_is_off(node: Host) -> None:
    port = json.loads(node.ssh("cat /etc/kimi/plan.json"))["metrics"]["node_port"]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    told = node.ssh(f'runuser -u nobody -- python3 -c "{code}" 2>&1 || true')
    assert "ConnectionRefusedError" in told
    assert "active" not in node.ssh("systemctl is-active prometheus-node-exporter || true").split()
    assert "disabled" in node.ssh("systemctl is-enabled prometheus-node-exporter || true")
    assert f"127.0.0.1:{port}" in node.ssh("ss -Hltn")


def test_all_targets_are_up_and_the_disk_is_bounded(watcher: Host) -> None:
    wanted = {"kimi-node": "up", "kimi-proxy": "up", "kimi-engine": "up"}
    assert until(lambda: targets(watcher) == wanted, 60), targets(watcher)
    flags = prometheus(watcher, "/api/v1/status/flags")
    assert flags["storage.tsdb.retention.size"] == "100MiB"
    assert flags["web.listen-address"] == "0.0.0.0:9090"
    names = [
        rule["name"]
        for row in prometheus(watcher, "/api/v1/rules")["groups"]
        for rule in row["rules"]
    ]
    assert names
    modes = watcher.ssh(
        "stat -c '%a %U %n' /etc/kimi-monitor/hosts/node1.key /etc/kimi-monitor/alertmanager.yml"
    )
    assert [line.split()[:2] for line in modes.splitlines()] == [["600", "kimi-monitor"]] * 2


def test_an_alert_reaches_the_receiver(watcher: Host) -> None:
    with receiving(watcher) as hook:
        watcher.ssh(
            "amtool --alertmanager.url=http://127.0.0.1:9093 alert add Tried host=node1 "
            "severity=warning"
        )
        # Alertmanager gathers alerts of one kind for half a minute.
        assert until(lambda: "Tried" in [row["name"] for row in hook.told()], 120)


def test_a_second_apply_changes_nothing(lab: Lab) -> None:
    done = kimi_prov("apply", lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads((newest_run(lab.inventory) / "result.json").read_text())["hosts"]
    assert {name: row["changed"] for name, row in hosts.items()} == {"node1": 0, "watcher": 0}


def test_weights_without_their_mark_show(node: Host) -> None:
    mark = node.ssh("ls /srv/kimi/models/*/*/.kimi-verified").strip()
    node.ssh(f"mv {mark} /tmp/mark")
    try:
        assert own_metrics(node)["kimi_weights_verified"] == 0
    finally:
        node.ssh(f"mv /tmp/mark {mark}")
    assert own_metrics(node)["kimi_weights_verified"] == 1


def test_a_stop_and_a_start_show(node: Host, watcher: Host, key: str) -> None:
    before = own_metrics(node)
    assert before['kimi_instance_active{engine="0"}'] == 1
    node.ssh("systemctl stop kimi-serve@0")
    stopped = own_metrics(node)
    assert stopped['kimi_instance_active{engine="0"}'] == 0
    assert stopped['kimi_instance_starting_seconds{engine="0"}'] == 0
    assert ask(watcher, "/metrics/engine/0", key, node.address)[0] == 503
    assert until(lambda: targets(watcher)["kimi-engine"] == "down", 60)
    node.ssh("systemctl start --no-block kimi-serve@0")
    assert until(lambda: own_metrics(node)['kimi_instance_starting{engine="0"}'] == 1, 60)
    name = 'kimi_instance_active{engine="0"}'
    assert until(lambda: own_metrics(node)[name] == 1, 900)
    after = own_metrics(node)
    assert after['kimi_instance_last_start_seconds{engine="0"}'] > 0
    starts = 'kimi_instance_starts_total{engine="0"}'
    assert after[starts] == before[starts] + 1


def test_another_certificate_shows_and_is_trusted_after_an_apply(
    lab: Lab, node: Host, watcher: Host
) -> None:
    ends = own_metrics(node)["kimi_certificate_expires_timestamp_seconds"]
    node.ssh("rm /etc/kimi/proxy/tls.pem")
    done = kimi_prov("apply", lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_metrics(node)["kimi_certificate_expires_timestamp_seconds"] > ends
    assert until(lambda: set(targets(watcher).values()) == {"up"}, 60), targets(watcher)


# Asks until the engine has worked for so many seconds of processors.
LOAD = """
import json, subprocess, sys, threading, urllib.request, ssl
key, wanted = open("/etc/kimi/keys/verify.key").read().strip(), float(sys.argv[1])
body = json.dumps({"model": "kimi-k2-lab", "max_tokens": 64, "ignore_eos": True,
                   "messages": [{"role": "user", "content": "Count."}]}).encode()
context = ssl._create_unverified_context()
def taken():
    show = ["systemctl", "show", "--value", "-p", "CPUUsageNSec", "kimi-serve@0"]
    return int(subprocess.run(show, capture_output=True, text=True).stdout) / 1e9
end = taken() + wanted
def work():
    while taken() < end:
        request = urllib.request.Request("https://127.0.0.1:8000/v1/chat/completions", body, {
            "Authorization": "Bearer " + key, "Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=300, context=context).read()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def seconds_of(host: Host, unit: str) -> float:
    """Seconds of processors that a unit has taken, by its control group."""
    told = host.ssh(f"systemctl show --value -p CPUUsageNSec {unit}").strip()
    return int(told) / 1e9


ASKED_S = 40.0
READINGS = 12


def test_watching_takes_little_of_what_the_engine_takes(
    node: Host, watcher: Host, key: str, record_property: pytest.RecordProperty
) -> None:
    """Seconds of processors alone are compared: how busy the machine is besides does not count.

    An engine under load takes all of its processors, so many seconds of a minute as these have.
    """
    processors = int(node.ssh("nproc"))
    node.ssh(f"cat > /tmp/load.py <<'EOF'\n{LOAD}\nEOF")
    before = seconds_of(node, "kimi-serve@0")
    node.ssh(f"python3 /tmp/load.py {ASKED_S}", timeout=900)
    engine = seconds_of(node, "kimi-serve@0") - before
    minutes = engine / processors / 60
    before = seconds_of(node, "kimi-node-exporter")
    for _ in range(READINGS):
        assert ask(watcher, "/metrics/node", key, node.address)[0] == 200
    reading = (seconds_of(node, "kimi-node-exporter") - before) / READINGS
    node.ssh("systemctl start kimi-metrics.service")
    writing = seconds_of(node, "kimi-metrics.service")
    # Read each 15 seconds, written twice a minute.
    watching = minutes * (4 * reading + 2 * writing)
    record_property("engine under load, seconds of processors", round(engine, 1))
    record_property("a reading of the node exporter", round(reading, 4))
    record_property("a writing of kimi-prov's own metrics", round(writing, 3))
    record_property("share of the engine's", f"{watching / engine:.2%}")
    assert watching <= 0.01 * engine


def test_status_tells_of_metrics(lab: Lab) -> None:
    done = kimi_prov("status", lab.inventory, "--format", "json")
    told = json.loads(done.stdout)["hosts"]["node1"]["metrics"]
    assert (told["port"], bool(told["listening"]), told["node_exporter"]) == (9443, True, "active")
    assert told["written_at"]
    assert "metrics" in kimi_prov("status", lab.inventory).stdout


def test_metrics_that_are_no_longer_wished_for_go_and_the_engine_stays(
    lab: Lab, node: Host, tmp_path: Path
) -> None:
    off = tmp_path / "off.yml"
    off.write_text("kimi_metrics: false\n")
    pid = node.ssh("systemctl show --value -p MainPID kimi-serve@0")
    done = kimi_prov("apply", lab.inventory, "--limit", "node1", "-e", f"@{off}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not node.ssh("ls /etc/systemd/system | grep -E 'kimi-(metrics|node)' || true")
    assert ":9443" not in node.ssh("ss -Hltn")
    assert "9443" not in node.ssh("nft list table inet kimi")
    assert node.ssh("systemctl show --value -p MainPID kimi-serve@0") == pid


def left(host: Host) -> str:
    """What is there of kimi-prov, and of what watches."""
    return host.ssh(
        "ls -d /etc/kimi* /var/lib/kimi* /srv/kimi* /etc/systemd/system/*kimi* "
        "/etc/systemd/system/*.d/*kimi* 2>/dev/null; "
        "getent passwd | grep kimi; getent group | grep kimi; nft list tables | grep kimi; "
        "ss -Hltn | grep -E ':(9090|9093|9100|9443)'; true"
    )


def test_a_host_that_only_watches_is_taken_out_alone(lab: Lab, node: Host, watcher: Host) -> None:
    """Before it leaves kimi_monitor: afterwards no play knows it."""
    assert "kimi_monitor" in left(watcher)
    pid = node.ssh("systemctl show --value -p MainPID kimi-serve@0")
    done = kimi_prov("destroy", lab.inventory, "--yes", "--limit", "watcher")
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(watcher) == ""
    assert node.ssh("systemctl show --value -p MainPID kimi-serve@0") == pid


def test_destroy_leaves_nothing_of_it(lab: Lab, node: Host, watcher: Host) -> None:
    done = kimi_prov("destroy", lab.inventory, "--yes", "--purge-weights")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in (node, watcher):
        assert left(host) == ""
