"""Updates of a machine that serves: its clients' streams end, it restarts once, it serves again.

Packages, the GPUs and their driver are stand-ins (tests/lab/nvidia.py); the engine that answers is
vLLM's CPU build with a tiny model. A restart of the container counts as a restart.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import nvidia
import pytest
import yaml
from machines import HANGS_S, KIMI_PROV, kimi_prov, run
from test_update import Archive, only, version

from kimi_prov.contract import paths
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from machines import Host

# A machine is served, has its updates, and is served again.
pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.116"
COUNTED = """[Unit]
Description=counts the starts of this machine
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo started >> /root/starts'
[Install]
WantedBy=multi-user.target
"""
UNATTENDED = (
    "DEBIAN_FRONTEND=noninteractive apt-get -qq -y install unattended-upgrades >/dev/null 2>&1; "
    "echo 'Unattended-Upgrade::Origins-Pattern { \"origin=lab\"; };' > /etc/apt/apt.conf.d/99lab"
)


class Client:
    """Streams one chat after the other; tells streams that were cut from requests refused."""

    def __init__(self, host: Host, model: str) -> None:
        self.key, fingerprint = host.door()
        self.endpoint = api_client.Endpoint(host.address, 8000, fingerprint, 120.0)
        self.body: dict[str, Any] = {"model": model, "max_tokens": 48}
        self.body["messages"] = [{"role": "user", "content": "Count."}]
        self.stop = threading.Event()
        self.whole = self.refused = 0
        self.cut: list[str] = []
        self.away_s = 0.0
        self._lost: float | None = None

    def run(self) -> None:
        """Ask until told to stop."""
        while not self.stop.is_set():
            pieces = 0
            try:
                answered = False
                for _, piece in api_client.stream(self.endpoint, self.key, self.body):
                    pieces += 1
                    answered = piece is None
            except api_client.ApiError as error:
                answered = False
                if pieces:
                    self.cut.append(str(error))
            now = time.monotonic()
            if answered:
                self.whole += 1
                if self._lost:
                    self.away_s, self._lost = self.away_s + now - self._lost, None
            else:
                self.refused += not pieces
                self._lost = self._lost or now
                time.sleep(0.2)


@contextmanager
def streaming(client: Client) -> Iterator[Client]:
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop.set()
        thread.join(HANGS_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Archive]]:
    """A machine with stand-ins for GPUs that serves, and an archive that it alone reads."""
    folder = tmp_path_factory.mktemp("served")
    wishes = {"nvidia_driver_answer_timeout_s": 60, "update_drain_timeout_s": 600}
    with (
        nvidia.machines(folder, NETWORK, {"gpu": nvidia.OLD}, **wishes) as (lab, _),
        closing(Archive(folder, f"{NETWORK}.1")) as archive,
    ):
        host = lab.hosts["gpu"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        host.ssh(UNATTENDED, timeout=600)
        host.ssh(
            f"cat > /etc/systemd/system/starts.service <<'EOF'\n{COUNTED}\nEOF\n"
            "systemctl daemon-reload; systemctl enable starts.service"
        )
        archive.offer(*version(1))
        with only(host, archive):
            # Beside it the driver's repository, as the apply configured it.
            host.ssh(
                "cp /opt/apt/sources.list.d/kimi-nvidia.sources /etc/apt/sources.list.d/ "
                "&& apt-get -qq update "
                "&& touch -d '1 week ago' /var/lib/dpkg/info/intel-microcode.list"
            )
            yield host, archive


def told(command: str, host: Host, *words: str) -> tuple[int, dict[str, Any]]:
    done: subprocess.CompletedProcess[str]
    done = kimi_prov(command, host.inventory, *words, "--format", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["hosts"][host.name]


def driver_in(rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(row["candidate"], row["held"]) for row in rows if row["kind"] == "driver"]


def test_an_unattended_upgrade_of_the_driver_is_held_and_seen(
    served: tuple[Host, Archive],
) -> None:
    """The repository has a newer driver, and the upgrade is told to take all that is there."""
    host, _ = served
    before = nvidia.running(host), nvidia.installed(host)
    host.ssh("apt-get -qq update; unattended-upgrade", timeout=600)
    assert (nvidia.running(host), nvidia.installed(host)) == before
    assert driver_in(told("status", host)[1]["updates"]["waiting"]) == [(f"{nvidia.NEWER}-1", True)]
    code, found = told("drift", host)
    assert (found["drift"], found["unseen"], code) == ([], [], 0)


def test_a_kernel_and_a_driver_take_one_restart_under_a_client_that_streams(
    served: tuple[Host, Archive], record_property: Callable[[str, object], None]
) -> None:
    host, archive = served
    archive.offer(*version(2))
    file = host.inventory / "group_vars" / "kimi.yml"
    wishes = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**wishes, "kimi_nvidia_driver_version": nvidia.NEWER}))
    host.ssh("rm -f /root/starts")
    model = json.loads(host.ssh("cat /etc/kimi/plan.json"))["model"]["served_names"][0]
    with streaming(Client(host, model)) as client:
        code, found = told("update", host, "--reboot-ok")
        answered = client.whole
        while client.whole < answered + 2:
            time.sleep(1)
    record_property("seconds without service", round(client.away_s, 1))
    assert (code, found["ok"]) == (0, True), found
    assert host.ssh("cat /root/starts").split() == ["started"]
    assert nvidia.running(host) == nvidia.NEWER
    assert {row["name"] for row in found["installed"]} == {
        "liblab",
        "linux-image-lab",
        "intel-microcode",
    }
    assert found["driver"] == nvidia.NEWER
    assert (found["restarted"], found["verified"], found["restart_reasons"]) == (True, True, [])
    # What was under way has ended; what came after it was refused and not left hanging.
    assert (client.cut, found["requests_cut"]) == ([], 0)
    assert client.refused > 0
    assert found["seconds_without_service"] > 0
    # What update did is no drift.
    code, found = told("drift", host)
    assert (found["drift"], found["unseen"], code) == ([], [], 0)


# Newer than all that NVIDIA's repository has here.
LATEST = "595.10.01"
GUARDS = ("/etc/apt/preferences.d/kimi-nvidia.pref", paths.UNATTENDED_UPGRADES)


def test_a_driver_that_was_changed_unattended_is_seen_with_its_cause_and_mended(
    served: tuple[Host, Archive],
) -> None:
    """After the test before. Somebody takes the guards away, and an unattended upgrade comes."""
    host, archive = served
    running = nvidia.running(host)
    held = host.ssh("apt-mark showhold").split()
    assert "nvidia-driver-cuda" in held
    archive.offer(*nvidia.packages(LATEST))
    host.ssh(f"apt-mark unhold {' '.join(held)}; rm -f {' '.join(GUARDS)}")
    host.ssh("apt-get -qq update; unattended-upgrade", timeout=600)
    assert nvidia.versions(host) == {LATEST}
    (reason,) = told("status", host)[1]["updates"]["restart_reasons"]
    assert reason == f"NVIDIA's driver {running} runs, {LATEST} is installed"
    code, found = told("drift", host)
    rows = {(row["id"], row["subject"]): row for row in found["drift"]}
    assert code == 1
    assert {name for name, _ in rows} >= {"drift.package", "drift.package_hold"}
    changed = rows["drift.package", "nvidia-driver-cuda"]
    assert (changed["expected"], changed["observed"]) == (f"{running}-1", f"{LATEST}-1")
    assert changed["by"].startswith("unattended-upgrade ")

    for fix in dict.fromkeys(row["fix"] for row in found["drift"]):
        if fix.startswith("kimi-prov"):
            done = run(KIMI_PROV, *shlex.split(fix)[1:])
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            host.ssh(fix, timeout=300)
    assert (nvidia.running(host), nvidia.versions(host)) == (running, {running})
    code, found = told("drift", host)
    assert (found["drift"], found["unseen"], code) == ([], [], 0)
