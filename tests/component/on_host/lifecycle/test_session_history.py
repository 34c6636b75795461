"""What sessions cost outlives the machine: kept by the real rclone in buckets of both protocols."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import bucket_servers
import closed_form
import command_line
import pytest

from kimi_prov.contract.addresses import find_sessions_folder
from kimi_prov.contract.documents.status.lifecycle import PaidStatus
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.cloud import main as cloud_main
from kimi_prov.on_host.endpoint import stop_log, stop_state
from kimi_prov.on_host.lifecycle import savings, session_history
from kimi_prov.show.text import status as status_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bucket_servers import Cloud
    from command_line import Done

pytestmark = pytest.mark.skipif(
    bucket_servers.missing() is not None, reason=str(bucket_servers.missing())
)
# The seconds that a test takes cost as well.
ABOUT_52 = pytest.approx(52, abs=0.9)
ANSWERS = {"why_not": None, "used": "7", "since_s": 5.0, "looked_s": 5.0}


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.slow)])
def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    if request.param == "s3":
        yield request.getfixturevalue("s3")
        return
    with bucket_servers.gs(tmp_path_factory.mktemp("gs")) as found:
        yield found


@pytest.fixture
def cloud(provider: Cloud) -> Iterator[Cloud]:
    provider.behaviour.reset()
    kept = provider.bucket("kimi-sessions")
    yield provider
    provider.behaviour.reset()
    purged = subprocess.run(
        kept.command("purge", kept.locate("")),
        env=kept.environment(),
        check=False,
        capture_output=True,
    )
    assert purged.returncode in (0, 3), purged.stderr.decode()


class Machine:
    """A machine that is paid for by the hour and takes its weights from a bucket."""

    def __init__(self, root: Path, cloud: Cloud, name: str, patch: pytest.MonkeyPatch) -> None:
        self.paths, self.name, self.told = Paths(root), name, list[str]()
        self.patch = patch
        source = cloud.url("kimi-k2.5")
        paid = {"usd_hour": 26.0, "budget_usd": 60.0, "kept_in": find_sessions_folder(source)}
        self.plan: dict[str, Any] = {
            "rest": {"paid": paid},
            "model": {"name": "kimi-k2.5"},
            "weights": {"source": source, "bucket": cloud.settings(), "ca_bundle": None},
        }
        self.paths.plan.parent.mkdir(parents=True)
        self.paths.plan.write_text(json.dumps(self.plan))

    def __enter__(self) -> None:
        self.patch.setattr(session_history.socket, "gethostname", lambda: self.name)

    def __exit__(self, *_: object) -> None:
        pass

    def costs(self, usd: float, since: str) -> None:
        """Have the session begun then, and cost so much of answers since."""
        savings.count_time(self.paths, self.plan, ANSWERS)
        found = json.loads(self.paths.sessions.read_text())
        seconds = {"starting": 0.0, "serving": usd / 26 * 3600, "idle": 0.0}
        found["session"] |= {"since": since, "seconds": seconds}
        self.paths.sessions.write_text(json.dumps(found))

    def keeps(self) -> None:
        with self:
            session_history.save(self.paths, self.plan, self.told.append)

    def ends(self, why: str = "nobody asked") -> None:
        with self:
            session_history.save_end(self.paths, self.plan, why, self.told.append)

    def status(self) -> dict[str, Any]:
        with self:
            found = session_history.describe_history(self.paths, self.plan)
        assert found is not None
        closed_form.validate_part(found, PaidStatus)
        return found

    def line(self) -> str:
        return " ".join(" ".join(status_text._format_cost(self.status())).split())


@pytest.fixture
def machine(tmp_path: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "one", cloud, "kimi", monkeypatch)


def listed(cloud: Cloud, *more: str, credentials: Path | None = None) -> Done:
    """What `kimi-prov sessions` says on the control machine."""
    keys = ("--credentials-file", str(credentials or cloud.good), "--endpoint", cloud.door.url)
    return command_line.run("sessions", cloud.url("kimi-k2.5"), *keys, *more)


def rows(cloud: Cloud) -> list[dict[str, Any]]:
    done = listed(cloud, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "sessions")
    assert document["usd"] == round(sum(row["usd"] for row in document["sessions"]), 2)
    return list(document["sessions"])


def test_a_session_is_listed_when_its_machine_is_gone(machine: Machine, cloud: Cloud) -> None:
    assert rows(cloud) == []
    machine.costs(52, "2026-11-27T10:00:00Z")
    machine.keeps()
    (going_on,) = rows(cloud)
    assert (going_on["machine"], going_on["usd"], going_on["end"]) == ("kimi", ABOUT_52, None)
    machine.ends()
    (row,) = rows(cloud)
    assert (row["model"], row["since"]) == ("kimi-k2.5", "2026-11-27T10:00:00Z")
    assert (row["end"], row["serving_usd"], row["budget_usd"]) == ("nobody asked", ABOUT_52, 60.0)
    # One object a session, beside the weights and not among them.
    names = cloud.bucket("kimi-sessions").objects()
    name = "kimi-20261127T100000Z.json"
    assert list(names) == [name]
    where = f"{cloud.scheme}://{bucket_servers.BUCKET}/kimi-sessions"
    stored = f"the cost of this session is stored: {where}/{name}"
    assert machine.told == [stored] * 2
    text = listed(cloud).stdout
    assert "2026-11-27T10:00:00Z  kimi     kimi-k2.5" in text
    assert re.search(r"\n1 session, \$52\.\d\d\n$", text)


def test_the_next_machine_tells_of_those_before_it(
    machine: Machine, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.costs(52, "2026-11-20T10:00:00Z")
    machine.ends()
    object_name = "kimi-20261120T100000Z.json"
    kept = json.loads(cloud.bucket("kimi-sessions").read(object_name, 1 << 20) or b"")
    cloud.put(
        "kimi-sessions",
        {object_name: json.dumps({**kept, "until": "2026-11-20T12:00:00Z"}).encode() + b"\n"},
    )
    next_one = Machine(tmp_path / "two", cloud, "kimi", monkeypatch)
    next_one.costs(13, "2026-11-27T10:00:00Z")
    # Nobody has read them yet.
    assert next_one.status()["before"] == []
    assert "history not kept yet in" in next_one.line()
    next_one.keeps()
    (before,) = next_one.status()["before"]
    assert (before["machine"], before["usd"]) == ("kimi", ABOUT_52)
    line = next_one.line()
    assert re.search(r"before 1 session, \$52\.\d\d; the last \$52\.\d\d in 2 h until ", line)
    assert f"kimi-prov sessions {cloud.scheme}://weights/kimi-sessions" in line
    # They are read once: a look every ten minutes writes, and lists nothing.
    cloud.behaviour.reset()
    next_one.keeps()
    assert [
        path for path in cloud.behaviour.paths if "list-type" in path or "prefix=" in path
    ] == []


@pytest.mark.parametrize("harm", ["wrong credentials", "not writable", "no such file"])
def test_where_it_cannot_be_written_that_is_told_once_with_what_to_grant(
    machine: Machine, cloud: Cloud, harm: str, tmp_path: Path
) -> None:
    machine.costs(13, "2026-11-27T10:00:00Z")
    if harm != "not writable":
        file = cloud.bad if harm == "wrong credentials" else tmp_path / "none"
        machine.plan["weights"]["bucket"]["credentials_file"] = str(file)
    for _ in range(2):
        cloud.behaviour.statuses[:] = [403] * 20 if harm == "not writable" else []
        machine.keeps()
    cloud.behaviour.reset()
    (told,) = machine.told
    assert told.startswith("the cost of this session is not stored: ")
    assert "write to" in told
    assert "s3:PutObject" in told
    kept = machine.status()["kept"]
    assert kept["failed"]
    assert kept["at"] is None
    assert "NOT KEPT" in machine.line()
    secret = cloud.bad.read_text().splitlines()[-1].rpartition("= ")[2]
    assert secret not in told + machine.line()
    # Where it may again, it is kept again.
    machine.plan["weights"]["bucket"] = cloud.settings()
    machine.keeps()
    assert machine.told[1].startswith("the cost of this session is stored: ")
    assert machine.status()["kept"]["failed"] is None


def test_who_may_not_read_is_told_what_to_name(machine: Machine, cloud: Cloud) -> None:
    machine.costs(13, "2026-11-27T10:00:00Z")
    machine.ends()
    done = listed(cloud, credentials=cloud.bad)
    assert done.returncode == 1
    assert "--credentials-file" in done.stderr
    assert done.stdout == ""


class _Silent(BaseHTTPRequestHandler):
    """Takes a request and never answers it."""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_PUT(self) -> None:
        time.sleep(60)


@pytest.fixture
def silent() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_bucket_that_does_not_answer_holds_no_end_up(
    machine: Machine, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_history, "END_S", 2.0)
    machine.plan["weights"]["bucket"] |= {"endpoint": silent}
    machine.paths.plan.write_text(json.dumps(machine.plan))
    machine.costs(13, "2026-11-27T10:00:00Z")
    with machine:
        began = time.monotonic()
        assert cloud_main.leave(machine.paths, "taken", 22.0, machine.told.append) == 0
    assert time.monotonic() - began < 20
    assert any("is not stored: " in line for line in machine.told)


def test_a_machine_that_is_taken_says_so_in_its_history(machine: Machine, cloud: Cloud) -> None:
    machine.costs(13, "2026-11-27T10:00:00Z")
    with machine:
        cloud_main.leave(
            machine.paths, "Google takes the machine within 30 s", 22.0, machine.told.append
        )
    (row,) = rows(cloud)
    assert row["end"] == "Google takes the machine within 30 s"
    # It is there ten minutes later and serves: its session goes on.
    machine.keeps()
    (row,) = rows(cloud)
    assert row["end"] is None


def test_a_machine_that_rests_costs_on_and_keeps_why(machine: Machine, cloud: Cloud) -> None:
    machine.costs(13, "2026-11-27T10:00:00Z")
    machine.ends()
    stop_state.write(machine.paths, stop_state.build_state(stop_state.ASLEEP, "nobody asked"))
    machine.costs(26, "2026-11-27T10:00:00Z")
    machine.keeps()
    (row,) = rows(cloud)
    assert (round(row["usd"]), row["end"]) == (26, "nobody asked")


def test_what_others_put_there_is_no_session(machine: Machine, cloud: Cloud) -> None:
    machine.costs(13, "2026-11-27T10:00:00Z")
    machine.ends()
    good = json.loads(
        cloud.bucket("kimi-sessions").read("kimi-20261127T100000Z.json", 1 << 20) or b""
    )
    cloud.put(
        "kimi-sessions",
        {
            "a.json": b"not JSON\n",
            "b.json": json.dumps({**good, "usd": "many"}).encode() + b"\n",
            "c.json": json.dumps({**good, "since": "\x1b[31mred"}).encode() + b"\n",
            "d.json": json.dumps({**good, "usd": 1e300}).encode() + b"\n",
            "notes.txt": b"of a person\n",
            "large.json": b" " * 100_000 + b"\n",
            "e.json": json.dumps({**good, "machine": "\x1b]0;x\x07m"}).encode() + b"\n",
        },
    )
    found = rows(cloud)
    assert len(found) == 2
    assert "\x1b" not in listed(cloud).stdout


def test_it_is_due_each_ten_minutes_by_a_unit_of_its_own(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/begun\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert session_history.is_due(machine.paths, machine.plan)
    session_history.start_saving(machine.paths)
    begun = (tmp_path / "begun").read_text()
    assert "--unit=kimi-sessions.service" in begun
    assert begun.rstrip().endswith("rest keep")
    assert not session_history.is_due(machine.paths, machine.plan)
    now = time.clock_gettime(stop_log.CLOCK)
    clock = lambda _: now + session_history.EVERY_S + 1  # noqa: E731
    monkeypatch.setattr(session_history.time, "clock_gettime", clock)
    assert session_history.is_due(machine.paths, machine.plan)


def test_without_a_bucket_the_history_ends_with_the_machine(machine: Machine, cloud: Cloud) -> None:
    machine.plan["rest"]["paid"]["kept_in"] = find_sessions_folder("hf://moonshotai/Kimi-K2.5@main")
    machine.costs(13, "2026-11-27T10:00:00Z")
    assert not session_history.is_due(machine.paths, machine.plan)
    machine.ends()
    assert machine.told == []
    assert "history ends with this machine: its weights come from no bucket" in machine.line()
    assert rows(cloud) == []


def test_an_address_that_is_no_bucket_is_refused() -> None:
    done = command_line.run("sessions", "/srv/weights")
    assert done.returncode == 2
    assert "expected s3://BUCKET or gs://BUCKET" in done.stderr
