"""Lines of several machines as one: their order, their forms, and who is not waited for."""

from __future__ import annotations

import json

import closed_form
import pytest

from kimi_prov.runner.events import TaskFinished
from kimi_prov.runner.progress import LogEntry, ProgressUpdate
from kimi_prov.show.text.logs import LogScreen, Timeline, build_document, format_line

START_US = 1_760_000_000_000_000
HOSTILE = "MARK\x1b]0;t\x07\x1b[31m\u202e\nforged"


def entry(at: int, message: str = "", unit: str = "kimi-serve@0.service", **more) -> LogEntry:
    return LogEntry(START_US + at, unit, message or f"at {at}", **more)


def messages(lines):
    return [line.entry.message for line in lines]


def test_lines_stand_by_their_time_whoever_came_first():
    line = Timeline(hold_s=1, first_s=1)
    line.add("b", [entry(3), entry(5)], now=10.0)
    line.add("a", [entry(4), entry(2)], now=10.5)
    assert line.due(10.9) == []
    # What has not been held long enough stays, though it belongs before.
    assert messages(line.due(11.0)) == ["at 3", "at 5"]
    assert messages(line.due(12.0)) == ["at 2", "at 4"]
    assert line.rest() == []


def test_a_slow_host_keeps_no_other_waiting():
    line = Timeline(hold_s=0.7, first_s=3)
    assert line.due(100) == []
    line.add("quick", [entry(1), entry(2)], now=0.0)
    line.add("slower", [entry(0)], now=2.0)
    assert messages(line.due(2.9)) == []
    assert messages(line.due(3.0)) == ["at 0", "at 1", "at 2"]
    line.add("slow", [entry(1, "late")], now=60.0)
    assert messages(line.due(61.0)) == ["late"]


def test_lines_of_one_time_keep_the_machines_order():
    line = Timeline(hold_s=0, first_s=0)
    line.add("a", [entry(1, "first"), entry(1, "second"), entry(1, "third")], now=0.0)
    assert messages(line.rest()) == ["first", "second", "third"]


def shown(form, updates, **options):
    written = []
    screen = LogScreen(form, Timeline(0, 0), written.append, **options)
    for update in updates:
        screen.progress(update)
    screen.tick()
    screen.stop()
    return "".join(written)


def test_each_line_of_json_is_a_document():
    update = ProgressUpdate("gpu-1", "logs", entries=(entry(1, HOSTILE, priority=3), entry(2)))
    lines = shown("json", [update]).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "\x1b" not in line
        closed_form.validate(json.loads(line), "logs")
    first = json.loads(lines[0])
    assert list(first) == ["schema", "time", "host", "unit", "priority", "message"]
    assert first["time"] == "2025-10-09T08:53:20.000001Z"
    assert first["message"] == HOSTILE


def test_a_line_names_time_host_and_unit(monkeypatch):
    update = ProgressUpdate("gpu-1", "logs", entries=(entry(1, "hello"),))
    assert shown("text", [update]).endswith(" gpu-1 serve@0: hello\n")
    assert "\x1b" not in shown("text", [update], colour=True)


def test_a_terminal_of_80_columns_shows_all_of_it():
    line = Timeline(0, 0)
    line.add("a-host-with-a-name", [entry(1, "word " * 60 + "x" * 300)], now=0)
    (one,) = line.rest()
    rows = format_line(one, width=80).splitlines()
    assert max(map(len, rows)) <= 80
    assert all(row.startswith("    ") for row in rows[1:])
    assert "".join(format_line(one, width=80).split()) == "".join(format_line(one).split())


@pytest.mark.parametrize(("priority", "mark"), [(3, "31"), (4, "33"), (6, "36"), (None, "36")])
def test_colours_are_ours_and_nobody_elses(priority, mark):
    line = Timeline(0, 0)
    line.add(f"h{HOSTILE}", [entry(1, HOSTILE, priority=priority)], now=0)
    (one,) = line.rest()
    plain = format_line(one)
    assert "\x1b" not in plain
    assert "\n" not in plain
    coloured = format_line(one, width=200, colour=True)
    assert coloured.startswith(f"\x1b[{mark}m")
    assert coloured.count("\x1b") == 2
    assert build_document(one)["priority"] == priority


def test_a_host_that_fails_is_told_of_at_once(capsys):
    screen = LogScreen("text", Timeline(0, 0), print)
    failed = TaskFinished(f"b{HOSTILE}", "", "Read", "kimi_logs", "unreachable", 1.0, {})
    screen.event(failed)
    screen.progress(ProgressUpdate("a", "logs", f"the connection was cut {HOSTILE}"))
    told = capsys.readouterr().err
    assert "no lines come from it any more" in told
    assert "the connection was cut" in told
    assert "\x1b" not in told
    assert len(told.splitlines()) == 2
