"""A real engine whose processes are stopped by SIGSTOP: the watchdog sees it, keeps why, restarts.

The figures are told at the end of the run: seconds from the stop until it was known, and until a
chat was answered again. Most of the second is the engine's own start.
"""

from __future__ import annotations

import json
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import HANGS_S, kimi_prov, make_lab
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNIT = "kimi-serve@0.service"
WATCHDOG = "kimi-watchdog.service"
WORKER, WEB_SERVER = "VLLM::Worker", "python"
# An engine's start on a computer with much else to do.
START_S = 900.0
RESTARTS = 3
LIMITS = {
    "watchdog_quiet_s": 15,
    "watchdog_computing_s": 300,
    "watchdog_ask_s": 15,
    "watchdog_every_s": 2,
    "watchdog_restarts_per_hour": RESTARTS,
}
# Half of its time the worker stands still, in pieces too short for anybody to see.
SLOWED = """
end=$(( $(date +%%s) + %(seconds)d ))
while [ $(date +%%s) -lt $end ]; do
  kill -STOP %(pid)s; sleep 0.15; kill -CONT %(pid)s; sleep 0.15
done
"""


@dataclass
class Served:
    """The served host, its door, and the time of its watchdog's journal that was read last."""

    host: Host
    endpoint: api_client.Endpoint
    key: str

    def signal(self, name: str, signal: str) -> None:
        self.host.signal(UNIT, name, signal)

    def chat(self, words: int = 1, timeout_s: float = 20.0) -> bool:
        endpoint = api_client.Endpoint(
            self.endpoint.host, self.endpoint.port, self.endpoint.fingerprint, timeout_s
        )
        messages = [{"role": "user", "content": "hello " * words}]
        try:
            return (
                api_client.request_chat(
                    endpoint, self.key, {"messages": messages, "max_tokens": 1}
                ).status
                == 200
            )
        except api_client.ApiError:
            return False

    def said(self, since: float) -> str:
        return self.host.ssh(
            f"journalctl -u {WATCHDOG} --since @{since:.0f} -o cat --no-pager", timeout=120
        )

    def record(self) -> dict[str, Any]:
        text = self.host.ssh(f"cat {paths.WATCHDOG_STATE} 2>/dev/null || echo '{{}}'")
        return dict(json.loads(text))

    def restarts(self) -> int:
        return int(self.record().get("restarts", {}).get(UNIT, 0))

    def probes(self) -> int:
        return int(self.record().get("probes", {}).get(UNIT, 0))

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """A client that reads an answer, and begins another one when it ends or breaks."""
        over = threading.Event()
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 3000,
            "min_tokens": 3000,
            "ignore_eos": True,
        }

        def read() -> None:
            while not over.wait(0.5):
                try:
                    for _ in api_client.stream(self.endpoint, self.key, body):
                        if over.is_set():
                            break
                except api_client.ApiError:
                    continue

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()

    def harmed(self, name: str, meanwhile: Callable[[float], object] = lambda _: None) -> str:
        """Stop processes of the engine while somebody reads; wait until a chat is answered.

        Returns the seconds until it was known and until it was served, as a sentence.
        """
        assert until(self.chat, START_S)
        before = self.restarts()
        with self.streaming():
            time.sleep(3)
            began, at = time.monotonic(), time.time()
            self.signal(name, "STOP")
            meanwhile(at)
            assert until(lambda: self.restarts() > before, START_S), self.said(at)
            known = time.monotonic() - began
        assert until(lambda: "serves again" in self.said(at), START_S), self.said(at)
        # The proxy sends to the engine again when its own check has seen it.
        assert until(self.chat, HANGS_S)
        served = time.monotonic() - began
        return f"known and kept after {known:.0f} s, served after {served:.0f} s"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    lab = make_lab(
        tmp_path_factory.mktemp("watchdog") / "inv", "10.93.131", nodes=["node1"], **LIMITS
    )
    with lab.running():
        host = lab.hosts["node1"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        key, pin = host.door()
        yield Served(host, api_client.Endpoint(host.address, 8000, pin, 600.0), key)


def test_a_stopped_worker_is_seen_kept_and_restarted(
    served: Served, record_property: Callable[[str, object], None]
) -> None:
    record_property("worker stopped", served.harmed(WORKER))
    last = served.record()["last"][-1]
    assert last["done"] == "restarted"
    assert last["served_again_s"] > 0
    folder = f"{paths.HANGS}/{last['bundle']}"
    stacks = served.host.ssh(f"cat {folder}/stacks.txt")
    # What each process computes, and what the one does that stands still.
    assert "run_busy_loop" in stacks
    assert "worker_busy_loop" in stacks
    assert "State:\tT (stopped)" in served.host.ssh(f"cat {folder}/processes.txt")
    for secret in served.host.ssh(f"cat {paths.MACHINE_KEY} {paths.VERIFY_KEY}").split():
        if len(secret) > 20:
            assert not served.host.ssh(f"grep -rlF {secret} {folder} || true").strip()


def test_a_stopped_web_server_is_seen_though_it_tells_nothing(
    served: Served, record_property: Callable[[str, object], None]
) -> None:
    record_property("web server stopped", served.harmed(WEB_SERVER))
    assert "reports no steps" in served.record()["last"][-1]["why"]


def test_a_watchdog_that_is_killed_begins_anew_and_sees_it(
    served: Served, record_property: Callable[[str, object], None]
) -> None:
    def kill(at: float) -> None:
        assert until(lambda: "asking it" in served.said(at), START_S)
        served.host.ssh(f"systemctl kill --signal=SIGKILL {WATCHDOG}")

    record_property("watchdog killed meanwhile", served.harmed(WORKER, kill))


def test_slow_steps_and_a_long_prompt_are_no_hang(served: Served) -> None:
    assert until(served.chat, START_S)
    at, before = time.time(), served.restarts()
    pid = served.host.ssh(
        f"for p in $(cat /sys/fs/cgroup$(systemctl show -P ControlGroup {UNIT})/cgroup.procs); do "
        f"case $(cat /proc/$p/comm) in {WORKER}*) echo $p ;; esac; done"
    ).strip()
    slow = SLOWED % {"seconds": 45, "pid": pid}
    thread = threading.Thread(target=served.host.ssh, args=[slow], daemon=True)
    thread.start()
    for _ in range(3):
        # A prompt is one step on processors: see docs/guides/watchdog.md.
        assert served.chat(words=500, timeout_s=120.0)
    with served.streaming():
        thread.join()
    assert served.restarts() == before
    assert "hangs" not in served.said(at)


def test_it_is_quiet_while_somebody_works_on_the_machine(served: Served) -> None:
    assert until(served.chat, START_S)
    at, before = time.time(), served.probes()
    holder = json.dumps({"run": "other", "user": "somebody", "control_host": "elsewhere"})
    served.host.ssh(f"umask 077; echo '{holder}' > {paths.APPLY_LOCK}")
    try:
        with served.streaming():
            assert until(lambda: "somebody@elsewhere works" in served.said(at))
            served.signal(WORKER, "STOP")
            time.sleep(3 * LIMITS["watchdog_quiet_s"])
    finally:
        served.signal(WORKER, "CONT")
        served.host.ssh(f"rm -f {paths.APPLY_LOCK}")
    assert served.probes() == before
    assert until(served.chat, START_S)


def test_status_and_diagnose_tell_of_it(served: Served, tmp_path: Path) -> None:
    if not served.record().get("last"):
        served.harmed(WORKER)
    inventory = served.host.inventory
    done = kimi_prov("status", inventory, "--format", "json")
    document = json.loads(done.stdout)
    closed_form.validate(document, "status")
    host = document["hosts"]["node1"]
    assert host["watchdog"]["last_hang"]["unit"] == UNIT
    assert host["now"]["engines"][0]["answers"]
    file = tmp_path / "bundle.tar.gz"
    done = kimi_prov("diagnose", inventory, "--to", file, "--format", "json")
    found = json.loads(done.stdout)["hosts"]["node1"]["findings"]
    assert "diagnose.hang" in {row["id"] for row in found}
    with tarfile.open(file) as archive:
        assert any(name.endswith("/stacks.txt") for name in archive.getnames())


def test_after_so_many_restarts_it_is_left_alone_until_somebody_starts_it(served: Served) -> None:
    while served.restarts() < RESTARTS:
        served.harmed(WORKER)
    assert until(served.chat, START_S)
    at = time.time()
    with served.streaming():
        served.signal(WORKER, "STOP")
        try:
            assert until(lambda: "it is left alone" in served.said(at), START_S), served.said(at)
            prom = served.host.ssh(f"cat {paths.WATCHDOG_METRICS}")
            assert 'kimi_watchdog_stalled{engine="0"} 1' in prom
            assert served.restarts() == RESTARTS
        finally:
            served.signal(WORKER, "CONT")
        # What goes on by itself is told too.
        assert until(lambda: "serves again" in served.said(at)), served.said(at)


def test_another_apply_changes_nothing_and_without_it_all_of_it_goes(
    served: Served, tmp_path: Path
) -> None:
    assert until(served.chat, START_S)
    started = served.host.ssh(f"systemctl show -P InvocationID {UNIT} {WATCHDOG}")
    done = served.host.playbook()
    assert "changed=0" in done.stdout, done.stdout
    assert served.host.ssh(f"systemctl show -P InvocationID {UNIT} {WATCHDOG}") == started
    wish = tmp_path / "wish.yml"
    wish.write_text("kimi_watchdog: false\n")
    done = served.host.apply("-e", f"@{wish}")
    assert done.returncode == 0, done.stdout + done.stderr
    left = f"ls {paths.HANGS} {paths.WATCHDOG_METRICS} {paths.WATCHDOG_STATE} 2>/dev/null || true"
    assert served.host.ssh(left).strip() == ""
    assert served.host.ssh(f"systemctl is-active {WATCHDOG} || true").strip() == "inactive"
    # The engine served all along.
    assert served.host.ssh(f"systemctl show -P InvocationID {UNIT}").strip() == started.split()[0]
