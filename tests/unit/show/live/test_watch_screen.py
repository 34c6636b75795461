"""The picture of `status --watch`, and its lines without a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest

from kimi_prov.runner.events import TaskFinished
from kimi_prov.runner.progress import ProgressUpdate
from kimi_prov.show.live.watch import WatchScreen, cut_to_size, format_host, is_drawable

GPU = {
    "index": 0,
    "name": "NVIDIA H200",
    "busy_share": 0.97,
    "memory_busy_share": 0.6,
    "memory_used_bytes": 131072 << 20,
    "memory_total_bytes": 143771 << 20,
    "power_w": 612.3,
    "power_limit_w": 700.0,
    "temperature_c": 61.0,
    "memory_temperature_c": 72.0,
    "clock_mhz": 1755.0,
    "clock_max_mhz": 1980.0,
    "ecc_uncorrected": 2,
    "throttled": ["power limit"],
}
ENGINE = {
    "index": 0,
    "unit": "kimi-serve@0.service",
    "answers": True,
    "running": 3,
    "waiting": 1,
    "cache_used_share": 0.42,
    "requests_at_proxy": 4,
    "decode_tok_s": 110.9,
    "prefill_tok_s": 0.0,
}


def document(**more: Any) -> dict[str, Any]:
    now = {
        "apart_s": 1.0,
        "engines": [ENGINE],
        "gpus": [GPU],
        "gpus_problem": None,
        "memory_read_bytes_per_s": 213.4e9,
        "memory_write_bytes_per_s": 1.2e9,
        "memory_problem": None,
        "amx_busy_share": None,
        "amx_problem": "the processor has no AMX",
    }
    return {
        "ok": True,
        "provisioned": True,
        "detail": "serving",
        "memory": {"host_total_bytes": 1 << 40, "host_available_bytes": 1 << 39},
        "watchdog": None,
        "now": {**now, **more},
    }


def update(host: str, found: dict[str, Any]) -> ProgressUpdate:
    return ProgressUpdate(host, "status", document=found)


def test_the_picture_has_80_columns_and_says_what_is_bad() -> None:
    lines = format_host("node1", "12:00:00", document())
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "3 running, 1 waiting, 110.9 tokens/s out" in text
    assert "SLOWED DOWN: power limit" in text
    assert "2 UNCORRECTED ERRORS" in text
    assert "213.4 GB/s read" in text
    # What the machine cannot tell fills no line of a picture.
    assert "AMX" not in text


def test_an_engine_that_tells_nothing_is_told_so() -> None:
    silent = {**ENGINE, "answers": False}
    text = " ".join(format_host("node1", "12:00:00", document(engines=[silent])))
    assert "has no metrics" in text


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (60, 10), (20, 3), (1, 1)])
def test_it_fits_every_terminal(columns: int, rows: int) -> None:
    lines = format_host("node1", "12:00:00", document(gpus=[{**GPU, "index": n} for n in range(8)]))
    cut = cut_to_size(lines, columns, rows)
    assert len(cut) <= max(rows, 2)
    assert max(map(len, cut)) <= columns


def test_a_terminal_gets_its_screen_back_with_the_last_picture() -> None:
    stream = io.StringIO()
    screen = WatchScreen(stream, 5.0, terminal=True)
    screen.start("status")
    screen.progress(update("node1", document()))
    screen.tick()
    drawn = len(stream.getvalue())
    screen.tick()
    assert len(stream.getvalue()) == drawn
    screen.stop()
    before, _, after = stream.getvalue().partition("\x1b[?1049l")
    assert before.count("\x1b[?1049h") == 1
    assert "\x1b[?25h" in before
    assert "110.9 tokens/s out" in after
    assert "\x1b" not in after


def test_without_a_terminal_each_look_is_a_plain_line() -> None:
    stream = io.StringIO()
    screen = WatchScreen(stream, 5.0, terminal=is_drawable(stream))
    screen.start("status")
    screen.progress(update("node1", document()))
    screen.tick()
    screen.progress(update("node2", {"detail": "not\x1b[2J active", "provisioned": False}))
    task = ("status", "Read the status", "kimi_status")
    screen.event(TaskFinished("node1", *task, "unreachable", 1.0, {}))
    screen.stop()
    first, second, third = stream.getvalue().splitlines()
    assert "node1: serving; engine 0: 3 running" in first
    assert "\x1b" not in second
    assert "not watched any more" in third
