"""A group lives and dies as one: real supervisors with real children, on loopback addresses."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from group_hosts import Group, runs
from waiting import until

from kimi_prov.on_host.system import group_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRANSIENT, PERMANENT = 1, 2


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    yield found
    found.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path, size=3)
    yield found
    found.close()


def heard_from(notified: socket.socket) -> bool:
    try:
        return bool(notified.recv(4096))
    except TimeoutError:
        return False


def gone(*pids: int) -> bool:
    return until(lambda: not any(runs(pid) for pid in pids), 20)


def test_nothing_starts_before_all_are_there_and_then_everything(three: Group) -> None:
    head = three.start(0)
    assert head.said("waiting for b, c")
    last = three.start(2)
    assert last.said("a is here; it waits for b")
    assert until(lambda: head.lines[-1].endswith("waiting for b"))
    assert not any(three.engines(name) for name in three.names)
    three.start(1)
    assert head.said("the engine answers")
    assert last.said("the model is served by a")
    # A rank's engine says so itself, when it has started.
    assert until(lambda: all(three.engines(name) for name in three.names))
    assert all(len(three.engines(name)) == 1 for name in three.names)


def test_a_rank_that_is_first_waits_for_the_head(group: Group) -> None:
    rank = group.start(1)
    assert rank.said("waiting for a, the head, at 127.0.0.2: Connection refused")
    head = group.start(0)
    assert head.said("the engine answers")
    assert rank.said("the model is served by a")


def test_what_differs_is_told_on_both_hosts_and_nothing_starts(group: Group) -> None:
    head = group.start(0)
    rank = group.start(1, digest="1" * 64)
    assert head.said("b is refused: plan not as on a")
    assert rank.said("a refuses this host: plan not as on a")
    assert "kimi-prov apply" in rank.text
    rank.kill(signal.SIGTERM)
    assert rank.end() == 0
    assert not group.engines("a")
    assert not group.engines("b")
    group.start(1)
    assert head.said("the engine answers")


def test_other_weights_differ_too(group: Group, tmp_path: Path) -> None:
    head = group.start(0)
    assert head.said("waiting for b")
    (tmp_path / "verified").write_text('{"manifest_sha256": "1"}')
    (tmp_path / "complete").write_text("other.txt")
    group.start(1)
    assert head.said("b is refused: environment, weights not as on a")


@pytest.mark.parametrize("dies", ["a", "b"])
def test_an_engine_that_dies_ends_all_engines(group: Group, dies: str) -> None:
    hosts = group.serve()
    (pid,) = group.engines(dies)
    os.kill(pid, signal.SIGKILL)
    assert [host.end() for host in hosts] == [TRANSIENT, TRANSIENT]
    assert gone(*group.engines("a"), *group.engines("b"))
    assert f"the engine on {dies} " in hosts[0].text
    assert "was ended by SIGKILL" in hosts[1].text


@pytest.mark.parametrize("dies", [0, 1])
def test_no_engine_outlives_a_supervisor_that_is_killed(group: Group, dies: int) -> None:
    hosts = group.serve()
    hosts[dies].kill()
    other = hosts[1 - dies]
    assert other.end() == TRANSIENT
    assert "left: the connection ended" in other.text
    assert gone(*group.engines("a"), *group.engines("b"))


@pytest.mark.parametrize("silent", [0, 1])
def test_a_host_that_says_nothing_any_more_is_left(group: Group, silent: int) -> None:
    """A supervisor that is stopped looks like a cut cable: its connection stays."""
    hosts = group.serve("--silence", "2")
    hosts[silent].kill(signal.SIGSTOP)
    other = hosts[1 - silent]
    assert other.end() == TRANSIENT
    assert "silent for 2 s" in other.text
    # Whoever goes on later finds that it was left.
    hosts[silent].kill(signal.SIGCONT)
    assert hosts[silent].end() == TRANSIENT
    assert gone(*group.engines("a"), *group.engines("b"))


def test_an_engine_that_stops_going_on_ends_the_round(group: Group) -> None:
    hosts = group.serve("--progress", "2")
    os.kill(group.engines("a")[0], signal.SIGSTOP)
    assert [host.end() for host in hosts] == [TRANSIENT, TRANSIENT]
    assert "the engine made no step and gave no answer for 2 s" in hosts[0].text
    assert gone(*group.engines("a"), *group.engines("b"))


def test_steps_are_life_although_no_chat_is_answered(group: Group, tmp_path: Path) -> None:
    """A long prompt holds every other question up."""
    series = 'vllm:kv_cache_usage_perc{engine="0"} '
    (tmp_path / "metrics").write_text(series + "0.0")
    head, rank = group.serve("--progress", "3")
    (tmp_path / "hangs").touch()
    moves = iter(range(1, 1000))

    def moved() -> bool:
        (tmp_path / "metrics.new").write_text(f"{series}0.{next(moves)}")
        (tmp_path / "metrics.new").replace(tmp_path / "metrics")
        return rank.process.poll() is not None or head.process.poll() is not None

    assert not until(moved, 4.5)
    assert head.end() == TRANSIENT


def test_a_stop_of_one_host_ends_its_engine_and_the_others_say_who_left(group: Group) -> None:
    head, rank = group.serve()
    rank.kill(signal.SIGTERM)
    assert rank.end() == 0
    assert gone(*group.engines("b"))
    assert head.end() == TRANSIENT
    assert "b left: its unit is stopped" in head.text
    assert head.said("b left")


def test_a_stop_of_the_head_is_told_to_the_ranks(group: Group) -> None:
    head, rank = group.serve()
    head.kill(signal.SIGTERM)
    assert head.end() == 0
    assert rank.end() == TRANSIENT
    assert "a, the head, left: its unit is stopped" in rank.text


def test_rounds_that_fail_though_all_are_there_are_counted_to_an_end(
    group: Group, tmp_path: Path
) -> None:
    (tmp_path / "breaks-b").touch()
    (tmp_path / "loads").touch()
    kept = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    for number in (1, 2, 3):
        head, rank = group.start(0, **kept), group.start(1)
        status = PERMANENT if number == 3 else TRANSIENT
        assert [head.end(), rank.end()] == [status, status], head.text + rank.text
        assert f"the engine on b ended with status 3 (round {number} of 3" in head.text
    assert "given up until somebody starts it again" in head.text
    assert "given up until somebody starts it again" in rank.text
    seen = group_state.read(kept["RUNTIME_DIRECTORY"])
    assert (seen.phase, seen.failed) == ("", 3)
    assert seen.why == "the engine on b ended with status 3"


def test_an_answer_begins_the_count_anew_and_waiting_counts_as_nothing(
    group: Group, tmp_path: Path
) -> None:
    kept = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    (tmp_path / "loads").touch()
    head, rank = group.start(0, "--loading", "2", **kept), group.start(1)
    assert [head.end(), rank.end()] == [TRANSIENT, TRANSIENT]
    assert "the engine did not answer within 2 s: POST /v1/chat/completions: 503" in head.text
    rounds = tmp_path / "run" / "rounds.json"
    assert json.loads(rounds.read_text())["failed"] == 1
    alone = group.start(0, **kept)
    assert alone.said("waiting for b")
    assert until(lambda: group_state.read(kept["RUNTIME_DIRECTORY"]).said == "waiting for b")
    assert group_state.read(kept["RUNTIME_DIRECTORY"]).phase == group_state.WAITING
    alone.kill(signal.SIGTERM)
    assert alone.end() == 0
    assert json.loads(rounds.read_text())["failed"] == 1
    (tmp_path / "loads").unlink()
    group.serve(**kept)
    assert not rounds.exists()
    seen = group_state.read(kept["RUNTIME_DIRECTORY"])
    assert seen.phase == group_state.SERVING
    assert "model is served by a" in seen.said or "the engine answers" in seen.said


def test_who_is_no_member_is_turned_away(group: Group) -> None:
    head = group.start(0)
    assert head.said("waiting for b")
    with socket.create_connection(("127.0.0.2", group.port), source_address=("127.0.0.9", 0)) as s:
        s.settimeout(20)
        assert s.recv(10) == b""
    assert head.said("refused 127.0.0.9: it is no member of the group")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "it is no JSON"),
        (b"x" * 9000, "it is longer than 8192 bytes"),
        (b'{"kind": "beat"}\n', "it said no hello"),
        (b'{"kind": "hello", "rank": 7, "facts": {}}\n', "it said no hello"),
        (b'{"kind": "hello", "rank": true, "facts": {}}\n', "rank is not as expected"),
    ],
)
def test_bad_messages_of_a_member_s_address_end_that_connection_alone(
    group: Group, sent: bytes, reason: str
) -> None:
    head = group.start(0)
    assert head.said("waiting for b")
    with socket.create_connection(("127.0.0.2", group.port), source_address=("127.0.0.3", 0)) as s:
        s.settimeout(20)
        s.sendall(sent)
        assert head.said(reason)
    assert head.process.poll() is None
    group.start(1)
    assert head.said("the engine answers")


def test_a_rank_that_begins_anew_unnoticed_ends_the_round(group: Group) -> None:
    """A power cut sends no end of a connection; the host may be back within the silence."""
    head, rank = group.serve()
    rank.kill(signal.SIGSTOP)
    again = group.start(1)
    assert head.end() == TRANSIENT
    assert "b started again" in head.text
    again.kill(signal.SIGTERM)
    assert again.end() == 0
    rank.kill(signal.SIGCONT)
    assert rank.end() == TRANSIENT


def test_systemd_hears_that_it_lives_and_what_it_waits_for(group: Group, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "15000000"}
        head = group.start(0, **told)
        heard = {notified.recv(4096).decode() for _ in range(6)}
        assert heard == {"WATCHDOG=1", "STATUS=waiting for b"}
        rank = group.start(1, "--silence", "2")
        assert until(lambda: notified.recv(4096).startswith(b"STATUS=the engine answers"))
        head.kill(signal.SIGSTOP)
        notified.settimeout(2)
        assert until(lambda: not heard_from(notified), 20)
        # Its silence is the rank's to notice: until then it could go on as if nothing had been.
        assert rank.end() == TRANSIENT
        head.kill(signal.SIGCONT)
        assert head.end() == TRANSIENT


@pytest.mark.parametrize(
    "wrong", [["--rank", "2"], ["--member", "c"], ["--member", "c=127.0.0.3"], ["--port", "x"]]
)
def test_a_wrong_command_line_is_not_tried_again(group: Group, wrong: list[str]) -> None:
    assert group.start(1, *wrong).end() == PERMANENT
