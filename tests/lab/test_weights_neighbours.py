"""Three hosts and one source behind a narrow link: how often its bytes are sent, and what is lost.

The source stands in a network namespace of its own on the lab's bridge. What it sends is shaped;
what hosts send each other is not.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines import ANSIBLE_PLAYBOOK, CHECKOUT, kimi_prov, make_lab, run
from waiting import until
from weights_server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import CompletedProcess

    from machines import Host, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.34"
SOURCE = f"{NETWORK}.200"
NAMESPACE = "kimi-lab-source"
TAGS = ("--tags", "host_base,weights")
MODELS = "/srv/kimi/models/kimi-k2-lab"
FAST, SLOW = "40mbit", "6mbit"
_NEWNET = 0x40000000


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Random bytes of some MB: what is fetched here is never loaded."""
    made = random.Random(24)  # noqa: S311
    many = {f"model-{n:02}.safetensors": made.randbytes(6_000_000 + n) for n in range(12)}
    return {**many, "config.json": b"{}\n"}


@pytest.fixture(scope="module")
def manifest(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
    ]
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    path.write_text(json.dumps({"files": rows}))
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    names = ["node1", "node2", "node3"]
    made = make_lab(tmp_path_factory.mktemp("near") / "inv", NETWORK, names)
    made.up()
    yield made
    made.down()


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Make sockets in another network: they stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as own, Path(f"/run/netns/{namespace}").open() as other:
        if libc.setns(other.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), namespace)
        try:
            yield
        finally:
            libc.setns(own.fileno(), _NEWNET)


@dataclass
class Shaped:
    """A server of weights whose link is narrow."""

    server: Server

    @property
    def served(self) -> int:
        return sum(self.server.behaviour.served.values())

    def shape(self, rate: str) -> None:
        tc = ["tc", "-n", NAMESPACE, "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        subprocess.run([*tc, "rate", rate, "burst", "64kb", "latency", "100ms"], check=True)

    def forget(self) -> None:
        self.server.behaviour.served.clear()


@pytest.fixture(scope="module")
def source(lab: Lab, files: dict[str, bytes]) -> Iterator[Shaped]:
    bridges = json.loads(run("ip", "-j", "-4", "address", "show").stdout)
    (bridge,) = [
        row["ifname"]
        for row in bridges
        if any(address["local"] == f"{NETWORK}.1" for address in row["addr_info"])
    ]
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        link = "link add klsource type veth peer name eth0 netns"
        for words in (
            f"{link} {NAMESPACE}",
            f"link set klsource master {bridge} up",
            f"-n {NAMESPACE} address add {SOURCE}/24 dev eth0",
            f"-n {NAMESPACE} link set eth0 up",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        with inside(NAMESPACE):
            server = Server(files, host=SOURCE)
        yield Shaped(server)
        server.stop()
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


@pytest.fixture
def shaped(lab: Lab, source: Shaped) -> Shaped:
    """The source before its first byte, and hosts without weights."""
    for host in lab.hosts.values():
        host.ssh(
            "systemctl disable --now kimi-fetch.service; systemctl reset-failed 'kimi-*'; "
            f"rm -rf {MODELS} /run/kimi/progress/fetch.json",
            check=False,
        )
    source.shape(FAST)
    source.forget()
    return source


def bring(
    lab: Lab, source: Shaped, manifest: Path, *args: str, **wishes: object
) -> CompletedProcess[str]:
    """Bring the weights to all hosts, and nothing that comes after them."""
    given = {
        "kimi_weights_source": source.server.url,
        "kimi_weights_manifest": str(manifest),
        # A computer with much else to do is no slow neighbour.
        "weights_neighbour_slowest": 1000,
        **wishes,
    }
    done = run(
        *(ANSIBLE_PLAYBOOK, "-i", str(lab.inventory), str(CHECKOUT / "playbooks" / "site.yml")),
        *TAGS,
        *("-e", json.dumps(given)),
        *args,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def verified(host: Host) -> float:
    """When a host had verified its last file."""
    return float(host.ssh(f"stat -c %.Y {MODELS}/*/.kimi-verified"))


def began(host: Host) -> float:
    """When its download was begun."""
    words = host.ssh("systemctl show -P ExecMainStartTimestampMonotonic kimi-fetch.service")
    return time.time() - time.monotonic() + float(words) / 1e6


def took_s(lab: Lab) -> float:
    """Seconds from the first download's start to the last file of the last host."""
    hosts = lab.hosts.values()
    return max(map(verified, hosts)) - min(map(began, hosts))


def holds(host: Host, files: dict[str, bytes]) -> bool:
    rows = host.ssh(f"cd {MODELS}/* && sha256sum *.safetensors config.json").splitlines()
    wanted = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    return {name: digest for digest, name in map(str.split, rows)} == wanted


def nothing_left(host: Host) -> bool:
    """Whether a host gives nothing any more, and has no key of a neighbour."""
    units = host.ssh("systemctl list-units --all --plain --no-legend 'kimi-share*'")
    there = host.ssh("ls -A /run/kimi/neighbours /run/kimi/share.json 2>/dev/null || true")
    ports = host.ssh("ss -Hltn sport = :29600")
    kept = [line for line in there.splitlines() if line and not line.endswith(":")]
    return not units.strip() and not ports.strip() and not kept


def total(files: dict[str, bytes]) -> int:
    return sum(map(len, files.values()))


def test_three_hosts_cost_the_source_what_one_costs(
    lab: Lab,
    shaped: Shaped,
    files: dict[str, bytes],
    manifest: Path,
    record_property: Callable[[str, object], None],
) -> None:
    bring(lab, shaped, manifest, kimi_weights_from="source")
    alone, alone_s = shaped.served, took_s(lab)
    assert all(holds(host, files) for host in lab.hosts.values())
    assert alone == 3 * total(files)
    for host in lab.hosts.values():
        host.ssh(f"systemctl stop kimi-fetch.service; rm -rf {MODELS}")
    shaped.forget()
    bring(lab, shaped, manifest)
    assert all(holds(host, files) for host in lab.hosts.values())
    assert shaped.served == total(files)
    near_s = took_s(lab)
    for name, value in (
        ("bytes of the source without neighbours", alone),
        ("seconds without neighbours", round(alone_s, 1)),
        ("bytes of the source with neighbours", shaped.served),
        ("seconds with neighbours", round(near_s, 1)),
    ):
        record_property(name, value)
    for name in ("node2", "node3"):
        told = lab.hosts[name].ssh("journalctl -u kimi-fetch -o cat --no-pager")
        assert " from node1" in told
        assert lab.hosts["node1"].ssh("id -u kimi-share 2>/dev/null || true") == ""
    assert all(nothing_left(host) for host in lab.hosts.values())
    again = bring(lab, shaped, manifest)
    assert again.stdout.count("changed=0") == 3
    assert shaped.served == total(files)
    # A host that comes later takes from one that has them; in check mode nobody is asked.
    lab.hosts["node3"].ssh(f"systemctl stop kimi-fetch.service; rm -rf {MODELS}")
    bring(lab, shaped, manifest, "--check")
    bring(lab, shaped, manifest)
    assert holds(lab.hosts["node3"], files)
    assert shaped.served == total(files)
    # Of one that the run leaves out nothing is asked.
    lab.hosts["node3"].ssh(f"systemctl stop kimi-fetch.service; rm -rf {MODELS}")
    bring(lab, shaped, manifest, "--limit", "node3")
    assert holds(lab.hosts["node3"], files)
    assert shaped.served == 2 * total(files)
    assert all(nothing_left(host) for host in lab.hosts.values())


def test_a_neighbour_that_is_lost_midway_costs_what_was_not_there_yet(
    lab: Lab,
    shaped: Shaped,
    files: dict[str, bytes],
    manifest: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """One that is killed alone is there again before anybody has given it up."""
    shaped.shape(SLOW)
    lost: list[int] = []

    def lose() -> None:
        show = "systemctl show -P NRestarts -P ActiveState kimi-share.service"
        until(lambda: shaped.served > total(files) // 8, 1200)
        lab.hosts["node1"].ssh("systemctl kill -s KILL kimi-share.service")
        assert until(lambda: set(lab.hosts["node1"].ssh(show).split()) == {"1", "active"})
        until(lambda: shaped.served > total(files) // 3, 1200)
        lab.hosts["node1"].ssh("systemctl stop kimi-share.service")
        lost.append(shaped.served)
        shaped.shape(FAST)

    killer = threading.Thread(target=lose)
    killer.start()
    try:
        done = bring(lab, shaped, manifest)
    finally:
        killer.join()
    assert all(holds(host, files) for host in lab.hosts.values())
    assert lost, "the neighbour was not lost as it should be"
    assert lost[0] < total(files)
    assert total(files) < shaped.served < 3 * total(files)
    assert "node1 is gone" in done.stdout + done.stderr
    record_property("bytes of the source when the neighbour was lost", lost[0])
    record_property("bytes of the source in all", shaped.served)
    assert all(nothing_left(host) for host in lab.hosts.values())


def test_a_neighbour_that_gives_wrong_bytes_is_named_and_the_source_taken(
    lab: Lab, shaped: Shaped, files: dict[str, bytes], manifest: Path
) -> None:
    bring(lab, shaped, manifest)
    folder = lab.hosts["node1"].ssh(f"ls -d {MODELS}/*").strip()
    for name in ("node2", "node3"):
        lab.hosts[name].ssh(f"systemctl stop kimi-fetch.service; rm -rf {MODELS}")
    # What a disk does: other bytes, and no other time.
    lab.hosts["node1"].ssh(
        f"""python3 - <<'EOF'
import os, pathlib
for path in pathlib.Path("{folder}").glob("*.safetensors"):
    state = path.stat()
    with path.open("r+b") as stream:
        stream.seek(1000)
        byte = stream.read(1)[0]
        stream.seek(1000)
        stream.write(bytes([byte ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
EOF"""
    )
    shaped.forget()
    done = bring(lab, shaped, manifest)
    for name in ("node2", "node3"):
        assert holds(lab.hosts[name], files)
    shards = total(files) - len(files["config.json"])
    assert shaped.served >= 2 * shards
    assert "node1 sent wrong bytes of" in done.stdout + done.stderr


def test_destroy_ends_what_a_killed_run_left(
    lab: Lab, shaped: Shaped, files: dict[str, bytes], manifest: Path
) -> None:
    shaped.shape(SLOW)
    given = {"kimi_weights_source": shaped.server.url, "kimi_weights_manifest": str(manifest)}
    site = str(CHECKOUT / "playbooks" / "site.yml")
    command = [ANSIBLE_PLAYBOOK, "-i", str(lab.inventory), site, *TAGS, "-e", json.dumps(given)]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        assert until(lambda: shaped.served > total(files) // 8, 1200)
        os.killpg(running.pid, 9)
    node1 = lab.hosts["node1"]
    assert node1.ssh("systemctl is-active kimi-share.service").strip() == "active"
    done = kimi_prov("destroy", lab.inventory, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(nothing_left(host) for host in lab.hosts.values())
    assert node1.ssh("ls -d /run/kimi 2>/dev/null || true") == ""
