"""The watchdog against a stand-in of an engine and of systemctl: what it asks, keeps and restarts.

The stand-in answers /health always, as an engine's web server does whatever its worker is at.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import small_disk

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system.notify import Notifier
from kimi_prov.on_host.watchdog import state
from kimi_prov.on_host.watchdog.classify import Limits
from kimi_prov.on_host.watchdog.service import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UNIT = "kimi-serve@0.service"
# A look takes some milliseconds; a look that a loaded computer delays ends no test.
LIMITS = Limits(quiet=0.5, computing=0.5, ask=0.5, every=10)
SYSTEMCTL = """#!/bin/sh
echo "$@" >> {calls}
case "$1" in
show) printf 'Id={unit}\\nActiveState=%s\\nInvocationID=%s\\nControlGroup=\\nJob=0\\n' \\
  "$(cat {state})" "$(cat {start})" ;;
esac
"""


@dataclass
class Engine:
    """A stand-in: how many requests run, how many tokens came, whether a chat is answered."""

    port: int = 0
    running: int = 1
    tokens: int = 5
    chat_status: int | None = 200
    asked_by: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def metrics(self) -> str:
        return (
            f"vllm:num_requests_running {self.running}.0\nvllm:num_requests_waiting 0.0\n"
            f"vllm:generation_tokens_total {self.tokens}.0\n"
        )


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, found.metrics().encode())

        def do_POST(self) -> None:
            found.asked_by.append(self.headers.get("X-Kimi-Key", ""))
            if found.chat_status is None:
                found.over.wait(60)
                return
            self._answer(found.chat_status, b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    found.over.set()
    server.shutdown()
    server.server_close()


@dataclass
class Machine:
    """A machine's files below a folder, and a systemctl that writes down what it is told."""

    paths: Paths
    calls: Path
    state: Path
    start: Path

    def told(self) -> list[str]:
        asked = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in asked if not line.startswith("show ")]

    def last(self) -> dict[str, Any]:
        found = state.find_last_hang(self.paths)
        assert found is not None
        return found


@pytest.fixture
def machine(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    paths = Paths(tmp_path / "root")
    for folder in (paths.etc, paths.state):
        folder.mkdir(parents=True)
    plan = {
        "instances": [{"index": 0, "port": engine.port}],
        "model": {"served_names": ["kimi"]},
    }
    paths.plan.write_text(json.dumps(plan))
    tools = tmp_path / "bin"
    tools.mkdir()
    found = Machine(paths, tmp_path / "calls", tmp_path / "state", tmp_path / "start")
    found.state.write_text("active")
    found.start.write_text("first")
    program = tools / "systemctl"
    program.write_text(
        SYSTEMCTL.format(calls=found.calls, state=found.state, start=found.start, unit=UNIT)
    )
    program.chmod(0o755)
    journal = tools / "journalctl"
    journal.write_text("#!/bin/sh\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return found


def turns(watchdog: Watchdog, until: Callable[[], object], most_s: float = 30.0) -> bool:
    """Let it look until something is so; whether it came to be."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        watchdog.turn(Notifier.none())
        if until():
            return True
        time.sleep(0.05)
    return False


def metrics(machine: Machine) -> dict[str, str]:
    lines = machine.paths.watchdog_metrics.read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_an_engine_that_answers_health_and_no_chat_is_kept_and_restarted(
    machine: Machine, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.chat_status = None
    watchdog = Watchdog(machine.paths, LIMITS, restarts=3)
    assert turns(watchdog, machine.told)
    assert machine.told() == [
        f"kill --signal=SIGKILL {UNIT}",
        f"reset-failed {UNIT}",
        f"restart --no-block {UNIT}",
    ]
    assert engine.asked_by == ["watchdog"]
    last = machine.last()
    assert last["done"] == "restarted"
    summary = json.loads((machine.paths.hangs / last["bundle"] / "summary.json").read_text())
    assert summary["unit"] == UNIT
    assert summary["cause"] is None
    assert "generation_tokens" in (machine.paths.hangs / last["bundle"] / "metrics.txt").read_text()
    said = capsys.readouterr().out
    for words in (
        "asking it for one token",
        "no step for",
        "evidence is stored in",
        "restart 1 of",
    ):
        assert words in said
    assert metrics(machine) == {
        'kimi_watchdog_probes_total{engine="0"}': "1",
        'kimi_watchdog_hangs_total{engine="0"}': "1",
        'kimi_watchdog_restarts_total{engine="0"}': "1",
        'kimi_watchdog_stalled{engine="0"}': "1",
    }
    # It loads, and then it serves: that is told, and nothing stalls any more.
    machine.state.write_text("activating")
    watchdog.turn(Notifier.none())
    assert metrics(machine)['kimi_watchdog_stalled{engine="0"}'] == "1"
    machine.state.write_text("active")
    machine.start.write_text("second")
    engine.running = 0
    watchdog.turn(Notifier.none())
    assert machine.last()["served_again_s"] > 0
    assert "serves again" in capsys.readouterr().out
    assert metrics(machine)['kimi_watchdog_stalled{engine="0"}'] == "0"


FALLEN = "NVRM: Xid (PCI:0000:17:00): 79, pid=4711, name=python, GPU has fallen off the bus."


def test_the_cause_that_logs_show_is_in_bundle_journal_and_metrics(
    machine: Machine, engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = {"__CURSOR": "c", "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), "MESSAGE": FALLEN}
    (tmp_path / "kernel").write_text(json.dumps(row) + "\n")
    (tmp_path / "bin" / "journalctl").write_text(
        f"#!/bin/sh\ncase \"$*\" in *--dmesg*) exec cat '{tmp_path}/kernel';; esac\n"
    )
    engine.chat_status = None
    watchdog = Watchdog(machine.paths, LIMITS, restarts=3)
    assert turns(watchdog, machine.told)
    bundle = machine.paths.hangs / machine.last()["bundle"]
    diagnosis = (bundle / "diagnosis.txt").read_text()
    title = diagnosis.splitlines()[0]
    assert any("  kernel.log:1: " in line and FALLEN in line for line in diagnosis.splitlines())
    assert json.loads((bundle / "summary.json").read_text())["cause"] == title
    assert f"its logs show the cause: {title}" in capsys.readouterr().out
    cause = machine.last()["cause_id"]
    assert f"id: {cause}" in diagnosis
    assert metrics(machine)[f'kimi_watchdog_last_cause{{engine="0",id="{cause}"}}'] == "1"


@small_disk.NEEDS_ROOT
def test_one_that_hangs_is_restarted_on_a_full_disk(
    machine: Machine, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.chat_status = None
    watchdog = Watchdog(machine.paths, LIMITS, restarts=1)
    with small_disk.full(machine.paths.state):
        assert turns(watchdog, lambda: f"restart --no-block {UNIT}" in machine.told())
        # What it cannot write it knows: it keeps to its restarts in an hour.
        machine.start.write_text("second")
        assert turns(watchdog, lambda: len(engine.asked_by) > 1)
        assert not turns(watchdog, lambda: len(machine.told()) > 3, most_s=2.5)
    said = capsys.readouterr().out
    assert said.count("is not stored: No space left on device") == 1
    assert "1 restarts in an hour did not help" in said
    watchdog.turn(Notifier.none())
    kept = json.loads(machine.paths.watchdog_state.read_text())["last"]
    assert [row["done"] for row in kept] == [state.RESTARTED, state.LEFT]


def test_a_refused_chat_is_none(machine: Machine, engine: Engine) -> None:
    engine.chat_status = 500
    assert turns(Watchdog(machine.paths, LIMITS, restarts=3), machine.told)
    assert "500" in machine.last()["why"]


def test_one_that_answers_our_chat_is_left_though_no_count_moves(
    machine: Machine, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog = Watchdog(machine.paths, LIMITS, restarts=3)
    assert turns(watchdog, lambda: len(engine.asked_by) >= 2)
    assert state.find_last_hang(machine.paths) is None
    assert machine.told() == []
    assert "it makes progress" in capsys.readouterr().out


def test_a_slow_engine_is_not_even_asked(machine: Machine, engine: Engine) -> None:
    watchdog = Watchdog(machine.paths, Limits(60, 60, 60, 10), restarts=3)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        engine.tokens += 1
        watchdog.turn(Notifier.none())
        time.sleep(0.3)
    assert engine.asked_by == []
    assert metrics(machine)['kimi_watchdog_stalled{engine="0"}'] == "0"


def test_after_so_many_restarts_in_an_hour_it_is_left_alone_and_told(
    machine: Machine, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.chat_status = None
    watchdog = Watchdog(machine.paths, LIMITS, restarts=1)
    assert turns(watchdog, machine.told)
    machine.start.write_text("second")
    assert turns(watchdog, lambda: machine.last()["done"] == state.LEFT)
    assert len([line for line in machine.told() if line.startswith("restart")]) == 1
    assert f"systemctl restart {UNIT}" in capsys.readouterr().out
    # The same start is dealt with once, also by a watchdog that was started anew.
    kept = len(list(machine.paths.hangs.iterdir()))
    again = Watchdog(machine.paths, LIMITS, restarts=1)
    assert not turns(again, lambda: len(list(machine.paths.hangs.iterdir())) > kept, most_s=2)
    assert metrics(machine)['kimi_watchdog_stalled{engine="0"}'] == "1"
    assert metrics(machine)['kimi_watchdog_hangs_total{engine="0"}'] == "2"


def test_a_watchdog_that_was_killed_tells_of_the_end_all_the_same(
    machine: Machine, engine: Engine
) -> None:
    engine.chat_status = None
    assert turns(Watchdog(machine.paths, LIMITS, restarts=3), machine.told)
    machine.start.write_text("second")
    engine.running = 0
    Watchdog(machine.paths, LIMITS, restarts=3).turn(Notifier.none())
    assert machine.last()["served_again_s"] > 0


@pytest.mark.parametrize("state", ["activating", "deactivating", "inactive", "failed"])
def test_what_does_not_serve_is_not_judged(machine: Machine, engine: Engine, state: str) -> None:
    machine.state.write_text(state)
    watchdog = Watchdog(machine.paths, LIMITS, restarts=3)
    assert not turns(watchdog, lambda: engine.asked_by, most_s=1.5)
    assert machine.told() == []


def test_a_machine_that_rests_on_purpose_is_not_judged(machine: Machine, engine: Engine) -> None:
    engine.chat_status = None
    machine.paths.stopped.write_text("{}")
    watchdog = Watchdog(machine.paths, LIMITS, restarts=3)
    assert not turns(watchdog, lambda: engine.asked_by, most_s=1.5)


def test_in_a_group_it_keeps_what_the_engine_is_at_and_asks_and_restarts_nothing(
    machine: Machine, engine: Engine
) -> None:
    engine.chat_status = None
    watchdog = Watchdog(machine.paths, Limits(0.5, 0.5, 0.5, 10, asks=False), restarts=3)
    assert turns(watchdog, lambda: state.find_last_hang(machine.paths))
    assert machine.last()["done"] == "left to the group"
    assert engine.asked_by == []
    assert machine.told() == []


def test_the_number_of_bundles_has_a_bound(machine: Machine, engine: Engine) -> None:
    engine.chat_status = None
    old = [f"2026010{day}T000000Z-serve@0" for day in range(1, 8)]
    for name in old:
        (machine.paths.hangs / name).mkdir(parents=True)
    assert turns(Watchdog(machine.paths, LIMITS, restarts=3), machine.told)
    left = sorted(path.name for path in machine.paths.hangs.iterdir())
    assert left == [*old[-4:], machine.last()["bundle"]]


def test_an_engine_that_its_memory_limit_ended_is_told_once(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    journalctl = machine.calls.with_name("bin") / "journalctl"
    asked, ends = machine.calls.with_name("asked"), machine.calls.with_name("ends")
    ends.write_text("")
    journalctl.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncat {ends}\n')
    journalctl.chmod(0o755)
    watchdog = Watchdog(machine.paths, LIMITS, 3)
    for _ in range(2):
        watchdog.turn(Notifier.none())
    assert state.list_memory_ends(machine.paths) == []
    # Asked when it was first seen, and not each time.
    (line,) = asked.read_text().splitlines()
    assert line.endswith(f"_PID=1 UNIT={UNIT} UNIT_RESULT=oom-kill")
    ends.write_text(f"1764450000.123456 host systemd[1]: {UNIT}: Failed with result 'oom-kill'.\n")
    machine.start.write_text("second")
    for _ in range(2):
        watchdog.turn(Notifier.none())
    told = [{"unit": UNIT, "at": "2025-11-29T21:00:00Z"}]
    assert state.list_memory_ends(machine.paths) == told
    assert capsys.readouterr().out.count("was ended by its memory limit") == 1
    # A watchdog that starts again knows it.
    Watchdog(machine.paths, LIMITS, 3).turn(Notifier.none())
    assert "memory limit" not in capsys.readouterr().out
    assert state.list_memory_ends(machine.paths) == told
