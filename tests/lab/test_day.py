"""A day of a served host in minutes: clients ask all the time, and it is harmed in three ways.

Each harm is told by an alert that a web hook receives, leaves what shows its cause, and is over by
itself or with its cause; at the end what was counted by key is what the clients counted. Rules,
exporters, watchdog and counter are those that are handed out. The figures are told at the end of
the run; most of a recovery is the start of the engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import closed_form
import httpx2
import openai
import pytest
import yaml
from key_clients import Client, command, used
from machines import kimi_prov
from monitored import NODE, WATCHER, monitored_lab, prometheus, receiving
from upgrades import disks
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.lab import inventory as lab_inventory
from kimi_prov.lab.state import LabState, find_state_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines import Host, Lab
    from monitored import Hook
    from upgrades import Disk

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.132"
UNIT = "kimi-serve@0.service"
# An engine's start on a computer with much else to do; an alert that holds for ten minutes before.
START_S = HELD_S = 1800.0
DISK_BYTES = 12 << 30
# A container's root is an overlay, of which the alert on disks does not tell: the same disk is seen
# here as what it is.
DATA = "/data"
LIMITS = {
    "watchdog_quiet_s": 15,
    "watchdog_computing_s": 300,
    "watchdog_ask_s": 15,
    "watchdog_every_s": 2,
}
TOKENS = 8
# Between two questions of a client, and between two looks that start programs.
PAUSE_S, LOOK_S = 2.0, 5.0
GONE = (openai.APIError, httpx2.HTTPError)


class Asker:
    """One client that asks again and again, and counts.

    `whole` are the answers that came whole, with the tokens that the client was told; `broken` are
    the others, of which nobody but the machine knows how far they came. Whoever holds `turn` keeps
    it from asking.
    """

    def __init__(self, client: Client, *, streams: bool) -> None:
        self.client = client
        self.broken = 0
        self.turn = threading.Lock()
        self._streams = streams
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        # When each answer that came whole was asked for, and when it was over.
        self.whole: list[tuple[float, float]] = []

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(PAUSE_S):
            with self.turn:
                self.ask()

    def ask(self) -> None:
        began, before = time.time(), self.client.told
        try:
            if self._streams:
                self.client.stream(tokens=TOKENS)
            else:
                self.client.plain(tokens=TOKENS, max_retries=0)
            whole = self.client.told != before
        except GONE:
            whole = False
        if whole:
            self.whole.append((began, time.time()))
        else:
            self.broken, self.client.told = self.broken + 1, before

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.client.http.close()

    def served_since(self, at: float) -> bool:
        """Whether something that was asked after this time was answered."""
        return any(began > at for began, _ in self.whole)


@dataclass
class Day:
    """The host, who asks it, who watches it and what the web hook was told."""

    lab: Lab
    host: Host
    watcher: Host
    disk: Disk
    hook: Hook
    askers: dict[str, Asker] = field(default_factory=dict)

    def serves(self) -> bool:
        """Whether everybody gets answers now."""
        at = time.time()
        return until(lambda: all(row.served_since(at) for row in self.askers.values()), START_S)

    @contextmanager
    def careful(self) -> Iterator[None]:
        """Keep the careful client from asking: all of its answers come whole."""
        with self.askers["careful"].turn:
            yield

    def recovered(self, at: float) -> float:
        """Wait until a harm of that time is over; seconds until all who ask were answered."""
        asking = [row for name, row in self.askers.items() if name != "careful"]
        assert until(lambda: all(row.served_since(at) for row in asking), START_S)
        # What was asked meanwhile and answered late has waited as well.
        firsts = [min(over for began, over in row.whole if began > at) for row in asking]
        return max(firsts) - at

    def told_of(self, name: str, before: int) -> dict[str, Any] | None:
        """The first delivery of an alert after so many others."""
        told = (row for row in self.hook.told()[before:] if row["name"] == name)
        return next((row for row in told if row["status"] == "firing"), None)

    def delivered(self, name: str, before: int, at: float) -> float:
        """Wait for an alert; seconds until the web hook had it. `at`: by the clock of all hosts."""
        assert until(lambda: self.told_of(name, before), HELD_S, LOOK_S), (
            self.hook.told()[before:],
            prometheus(self.watcher, "/api/v1/alerts"),
        )
        row = self.told_of(name, before)
        assert row is not None
        assert row["labels"]["host"] == NODE
        assert NODE in row["annotations"]["summary"]
        return float(row["at"]) - at

    def metric(self, name: str) -> float:
        """What the machine's Prometheus has of a metric of its engine now."""
        (row,) = prometheus(self.watcher, f"/api/v1/query?query={name}")["result"]
        return float(row["value"][1])

    def bundle(self, file: Path) -> tuple[set[str], set[str]]:
        """Findings of `diagnose`, and the names of what it brought."""
        done = kimi_prov("diagnose", self.lab.inventory, "--to", file, "--format", "json")
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)["hosts"][NODE]["findings"]
        with tarfile.open(file) as archive:
            return {row["id"] for row in found}, set(archive.getnames())


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    lab = monitored_lab(tmp_path_factory.mktemp("day") / "inv", NETWORK, **LIMITS)
    _see_the_disk(lab)
    with disks(lab, DISK_BYTES) as made:
        done = kimi_prov("apply", lab.inventory)
        assert done.returncode == 0, done.stdout + done.stderr
        host, watcher = lab.hosts[NODE], lab.hosts[WATCHER]
        with receiving(watcher) as hook:
            found = Day(lab, host, watcher, made[NODE], hook)
            for name, streams in (("stream", True), ("plain", False), ("careful", True)):
                key = command(host, "key", "--add", name).split()[1]
                found.askers[name] = Asker(Client(host, key), streams=streams)
            for asker in found.askers.values():
                asker.start()
            try:
                yield found
            finally:
                for asker in found.askers.values():
                    asker.end()


def _see_the_disk(lab: Lab) -> None:
    """Have the host see its disk beside its root as well."""
    file = lab.inventory / "hosts.yml"
    document = yaml.safe_load(file.read_text())
    document["all"]["children"]["kimi"]["hosts"][NODE]["lab_shared"] = [DATA]
    file.write_text(yaml.safe_dump(document))
    state = LabState(find_state_home() / lab_inventory.identify_lab(lab.inventory)[0])
    seen = state.shared(DATA)
    seen.parent.mkdir(parents=True)
    seen.symlink_to(state.host(NODE).folder)


# Whether a connection is taken; the filter drops what comes from others.
REACHED = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("reached")
except OSError:
    print("closed")
"""


def test_a_host_that_watches_tells_what_it_sees_and_lets_in_whom_it_may(day: Day) -> None:
    done = kimi_prov("status", day.lab.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "status")
    found = document["hosts"][WATCHER]["monitor"]
    assert (found["prometheus"], found["alertmanager"]) == ("active", "active")
    assert (found["targets"], found["answers"]) == (3, True)
    assert 0 < found["series_bytes"] < found["series_limit_bytes"] == 100 << 20
    assert "targets" in kimi_prov("status", day.lab.inventory).stdout
    for port in (9090, 9093):
        asked = f"python3 -c '{REACHED}' {day.watcher.address} {port}"
        assert day.host.ssh(asked).strip() == "reached"
        assert day.watcher.ssh(asked).strip() == "reached"
        told = subprocess.run(
            [sys.executable, "-c", REACHED, day.watcher.address, str(port)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == "closed"


def test_an_engine_that_is_killed_is_told_and_serves_again(
    day: Day, record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    assert day.serves()
    before = len(day.hook.told())
    with day.careful():
        day.host.ssh(f"systemctl kill --signal=SIGKILL {UNIT}")
        # Until then it still answered.
        at = time.time()
        record_property("killed: served again after s", round(day.recovered(at)))
    record_property(
        "killed: alert delivered after s", round(day.delivered("KimiEngineEnded", before, at))
    )
    _, names = day.bundle(tmp_path / "bundle.tar.gz")
    assert any("/logs/kimi-serve@0" in name for name in names), names


def test_an_engine_that_hangs_is_told_kept_and_serves_again(
    day: Day, record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    assert day.serves()
    before, ended = len(day.hook.told()), day.metric("kimi_instance_restarts_total")
    with day.careful():
        day.host.signal(UNIT, "VLLM::Worker", "STOP")
        at = time.time()
        record_property("hung: served again after s", round(day.recovered(at)))
    record_property(
        "hung: alert delivered after s", round(day.delivered("KimiWatchdogRestarted", before, at))
    )
    # The watchdog asked for the restart: the engine did not end by itself.
    assert day.metric("kimi_instance_restarts_total") == ended
    last = json.loads(day.host.ssh(f"cat {paths.WATCHDOG_STATE}"))["last"][-1]
    assert (last["unit"], last["done"]) == (UNIT, "restarted")
    record_property("hung: seconds without a step, by the watchdog", last["served_again_s"])
    findings, names = day.bundle(tmp_path / "bundle.tar.gz")
    assert "diagnose.hang" in findings
    assert any(name.endswith("/stacks.txt") for name in names)


def test_a_disk_without_room_is_told_and_takes_no_answer_and_no_count(
    day: Day, record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    assert day.serves()
    before, broken = len(day.hook.told()), {name: row.broken for name, row in day.askers.items()}
    at = time.time()
    day.disk.fill()
    try:
        assert day.serves()
        # A machine without room says what it is at.
        done = kimi_prov("status", day.lab.inventory, "--format", "json")
        disks_told = json.loads(done.stdout)["hosts"][NODE]["disks"]
        assert min(row["free_bytes"] for row in disks_told) < DISK_BYTES / 100, done.stderr
        record_property(
            "no room: alert delivered after s", round(day.delivered("KimiDiskFull", before, at))
        )
        assert day.serves()
        findings, _ = day.bundle(tmp_path / "bundle.tar.gz")
        assert "diagnose.disk_full" in findings
    finally:
        day.disk.free()
    freed = time.time()
    # Nobody was refused, nor lost an answer.
    assert {name: row.broken for name, row in day.askers.items()} == broken
    with day.careful():
        assert until(lambda: counted(day, "careful") == day.askers["careful"].client.told, START_S)
    record_property("no room: counted up after s", round(time.time() - freed))

    def over() -> bool:
        told = [row for row in day.hook.told()[before:] if row["name"] == "KimiDiskFull"]
        return bool(told) and told[-1]["status"] == "resolved"

    assert until(over, HELD_S, LOOK_S)
    record_property("no room: its end delivered after s", round(time.time() - freed))


def test_the_use_adds_up_to_what_the_clients_counted(
    day: Day, record_property: Callable[[str, object], None]
) -> None:
    assert day.serves()
    for asker in day.askers.values():
        asker.end()
    prompt = day.askers["careful"].client.told[1] // day.askers["careful"].client.told[0]
    assert until(lambda: counted(day, "careful") == day.askers["careful"].client.told, START_S)
    for name, asker in day.askers.items():
        told, found = asker.client.told, counted(day, name)
        record_property(f"{name}: requests, tokens in, tokens out", told)
        record_property(f"{name}: answers that the harms broke", asker.broken)
        # Of an answer that broke the machine may have counted all, or nothing.
        most = (asker.broken, asker.broken * prompt, asker.broken * TOKENS)
        for was, now, more in zip(told, found, most, strict=True):
            assert was <= now <= was + more
    assert day.askers["careful"].broken == 0


def counted(day: Day, name: str) -> list[int]:
    """Requests, tokens in and out of a key, as the machine counted them."""
    return used(day.host).get(name, [0, 0, 0])
