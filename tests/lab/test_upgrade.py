"""An apply that changes what serves: it stays where it serves, and goes back by itself elsewhere.

With a client that streams all the while. The seconds without service are printed at the end.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import psutil
import pytest
import yaml
from machines import HANGS_S, kimi_prov

from kimi_prov import schemas
from kimi_prov.commands import lab as commands
from kimi_prov.contract import paths
from kimi_prov.on_host.gateway import api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab

# Its parser takes the flag; the engine refuses it of weights that are not of that form.
NO_START = {"kimi_engine_args": {"quantization": "awq"}}
# It answers chats, and refuses the longer ones that verify asks.
WRONG = {"kimi_context": 512}
GOOD = {"kimi_concurrency": 8}


class Client:
    """Streams one chat after the other; notes when none came."""

    def __init__(self, host: Host) -> None:
        self.key, fingerprint = host.door()
        self.endpoint = api.Endpoint(host.address, 8000, fingerprint, 120.0)
        self.stop = threading.Event()
        self.away_s = 0.0
        self._lost: float | None = None

    def run(self) -> None:
        """Ask until told to stop."""
        body = {"model": "kimi-k2-lab", "max_tokens": 24}
        body["messages"] = [{"role": "user", "content": "Count."}]
        while not self.stop.is_set():
            try:
                answered = [p for _, p in api.stream(self.endpoint, self.key, body)][-1] is None
            except (api.ApiError, IndexError):
                answered = False
            now = time.monotonic()
            if not answered:
                self._lost = self._lost or now
                time.sleep(0.2)
            elif self._lost:
                self.away_s, self._lost = self.away_s + now - self._lost, None


@contextmanager
def streaming(host: Host, note: Callable[[str, object], None]) -> Iterator[Client]:
    client = Client(host)
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop.set()
        thread.join(HANGS_S)
        note("seconds without service", round(client.away_s, 1))


def history(host: Host) -> dict[str, Any]:
    done = kimi_prov("history", host.inventory, "--limit", host.name, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, schemas.load("history"))
    found: dict[str, Any] = document["hosts"][host.name]
    return found


def changed(host: Host, folder: Path, settings: dict[str, Any], *more: str) -> Any:
    file = folder / "settings.yml"
    file.write_text(yaml.safe_dump(settings))
    return host.apply("-e", f"@{file}", *more)


def chats(host: Host) -> None:
    key, fingerprint = host.door()
    endpoint = api.Endpoint(host.address, 8000, fingerprint, 120.0)
    question = [{"role": "user", "content": "Hello"}]
    body = {"model": "kimi-k2-lab", "messages": question, "max_tokens": 2}
    assert api.chat(endpoint, key, body).status == 200


def test_an_engine_that_does_not_start_is_gone_back_from(
    served_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    before = served_host.ssh("cat /etc/kimi/plan.json")
    was = history(served_host)["current"]
    with streaming(served_host, record_property):
        done = changed(served_host, tmp_path, NO_START)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"went back by itself to entry {was}" in done.stderr
    found = history(served_host)
    last = found["entries"][-1]
    assert (last["result"], last["returned_to"], found["current"]) == ("returned", was, was)
    assert "kimi-serve@0.service failed" in last["why"]
    assert found["switch"] is None
    assert served_host.ssh("cat /etc/kimi/plan.json") == before
    chats(served_host)
    again = served_host.apply()
    assert again.returncode == 0, again.stderr
    assert "changed=0" in again.stdout


@pytest.mark.slow
def test_one_that_is_good_stays_and_is_rolled_back_by_hand(
    served_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    was = history(served_host)["current"]
    with streaming(served_host, record_property):
        done = changed(served_host, tmp_path, GOOD)
        assert done.returncode == 0, done.stderr
    found = history(served_host)
    last = found["entries"][-1]
    assert (last["result"], last["number"]) == ("done", found["current"])
    assert last["by"]["user"]
    assert last["speed"]["decode_tok_s"] > 0
    assert last["speed_before"]["decode_tok_s"] > 0
    assert last["seconds_without_service"] > 0

    back = kimi_prov("rollback", served_host.inventory, "--limit", served_host.name)
    assert back.returncode == 0, back.stderr
    found = history(served_host)
    last = found["entries"][-1]
    assert (last["kind"], last["restores"], last["result"]) == ("rollback", was, "done")
    # The inventory says what was there at first: nothing is left to do.
    assert "changed=0" in served_host.apply().stdout


@pytest.mark.slow
def test_one_that_answers_wrongly_is_gone_back_from(
    served_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    was = history(served_host)["current"]
    with streaming(served_host, record_property):
        done = changed(served_host, tmp_path, WRONG)
    assert done.returncode == 1
    last = history(served_host)["entries"][-1]
    assert (last["result"], last["returned_to"]) == ("returned", was)
    assert "it did not pass verify" in last["why"]
    chats(served_host)


@pytest.mark.slow
def test_one_that_is_slow_is_gone_back_from(served_host: Host, tmp_path: Path) -> None:
    """What burns the processor from the verification on stands for a slow engine."""
    burns = "for n in $(seq 32); do timeout 600 sha256sum /dev/zero & done"
    waits = "until journalctl -u kimi-switch | grep -q 'verifying'; do sleep 0.2; done"
    served_host.ssh("journalctl --rotate; journalctl --vacuum-time=1s")
    served_host.ssh(f"systemd-run --unit=burn sh -c '{waits}; {burns}; wait'")
    try:
        done = changed(served_host, tmp_path, {**GOOD, "kimi_upgrade_min_speed": 0.9})
    finally:
        served_host.ssh("systemctl stop burn", check=False)
    assert done.returncode == 1
    assert "kimi_upgrade_min_speed is 0.9" in history(served_host)["entries"][-1]["why"]
    chats(served_host)


def control_is_killed(host: Host) -> None:
    """End the control side as SIGKILL does: nothing of it is left to clear up."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "ansible-playbook" in words and str(host.inventory) in words:
            process.kill()


def power_is_cut(host: Host) -> None:
    commands.power(host.inventory, host.name, on=False, hard=True)
    commands.power(host.inventory, host.name, on=True)


def switch_is_killed(host: Host) -> None:
    host.ssh("systemctl kill --signal=SIGKILL kimi-switch", check=False)


def reached(host: Host, phase: str, line: str) -> Callable[[], bool]:
    """Whether a switch is open in a phase, and its unit has said a line."""
    asks = f"cat {paths.SWITCH}; journalctl -u kimi-switch -o cat"
    return lambda: f'"phase": "{phase}"' in (told := host.ssh(asks, check=False)) and line in told


@pytest.mark.slow
@pytest.mark.parametrize("harm", [control_is_killed, power_is_cut, switch_is_killed])
@pytest.mark.parametrize(
    ("phase", "line"),
    [("writing", ""), ("switching", "measuring"), ("switching", "loading"), ("returning", "")],
)
def test_whatever_is_cut_one_of_the_two_serves_and_the_next_run_says_which(
    served_host: Host, tmp_path: Path, harm: Callable[[Host], None], phase: str, line: str
) -> None:
    settings = NO_START if phase == "returning" else GOOD
    served_host.ssh("journalctl --rotate; journalctl --vacuum-time=1s")
    run = threading.Thread(target=changed, args=(served_host, tmp_path, settings))
    run.start()
    there = reached(served_host, phase, line)
    while run.is_alive() and not there():
        time.sleep(0.2)
    harm(served_host)
    run.join(HANGS_S)

    until = time.monotonic() + HANGS_S
    while time.monotonic() < until:
        state = served_host.ssh("systemctl is-active kimi-serve@0", check=False).strip()
        if state == "active" and history(served_host)["switch"] is None:
            break
        if state == "active" and harm is control_is_killed and phase == "writing":
            break
        time.sleep(1)
    chats(served_host)
    assert served_host.ssh("systemctl is-active kimi-firewall").strip() == "active"
    again = served_host.apply()
    assert again.returncode == 0, again.stderr
    found = history(served_host)
    assert found["switch"] is None
    assert "changed=0" in served_host.apply().stdout


@pytest.mark.slow
def test_a_full_disk_does_not_keep_the_machine_from_going_back(
    served_host: Host, tmp_path: Path
) -> None:
    was = history(served_host)["current"]
    fills = "dd if=/dev/zero of=/var/lib/kimi/fill bs=1M || true"
    waits = f"until grep -q switching {paths.SWITCH}; do sleep 0.2; done"
    served_host.ssh("mount -t tmpfs -o size=64m tmpfs /mnt && cp -a /var/lib/kimi/. /mnt/")
    served_host.ssh("mount --bind /mnt /var/lib/kimi")
    try:
        served_host.ssh(f"systemd-run --unit=fill sh -c '{waits}; {fills}'")
        done = changed(served_host, tmp_path, NO_START)
        assert done.returncode == 1
        served_host.ssh("rm -f /var/lib/kimi/fill")
        last = history(served_host)["entries"][-1]
        assert (last["result"], last["returned_to"]) == ("returned", was)
    finally:
        served_host.ssh(
            "rm -f /var/lib/kimi/fill; cp -a /var/lib/kimi /tmp/kept; "
            "umount -l /var/lib/kimi /mnt; cp -a /tmp/kept/. /var/lib/kimi/; rm -r /tmp/kept"
        )
    chats(served_host)


@pytest.mark.slow
def test_clean_frees_what_no_version_needs(served_host: Host) -> None:
    left = f"{paths.MODELS}/other/r"
    served_host.ssh(f"mkdir -p {left} && head -c 3000000 /dev/zero > {left}/shard")
    words = ("clean", served_host.inventory, "--limit", served_host.name, "--format", "json")
    found = json.loads(kimi_prov(*words, "--check").stdout)
    jsonschema.validate(found, schemas.load("clean"))
    assert left in [item["path"] for item in found["hosts"][served_host.name]["items"]]
    assert served_host.ssh(f"ls {left}").strip() == "shard"
    done = json.loads(kimi_prov(*words, "--yes").stdout)
    assert done["hosts"][served_host.name]["bytes"] >= 3000000
    assert not served_host.ssh(f"ls {left}", check=False).strip()
    chats(served_host)
