import json
import stat

import pytest

from kimi_prov.runner import progress
from kimi_prov.runner.progress import Reader, Update


class Screen:
    def __init__(self):
        self.lines = []

    def display(self, msg):
        self.lines.append(msg)


def test_what_a_plugin_reports_is_what_the_reader_gets(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    monkeypatch.setenv("KIMI_PROV_PROGRESS", str(path))
    reader = Reader(path)
    assert reader.read() == []
    screen = Screen()
    progress.report(
        screen, "a", {"phase": "download", "done_bytes": 1, "total_bytes": 4, "line": "x"}
    )
    progress.report(screen, "b", {"phase": "start", "line": None})
    assert reader.read() == [
        Update("a", "download", "x", done_bytes=1, total_bytes=4),
        Update("b", "start"),
    ]
    assert reader.read() == []
    assert screen.lines == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "progress"
    line = json.dumps({"host": "a", "phase": "stage"})
    path.write_text(line[:9])
    reader = Reader(path)
    assert reader.read() == []
    path.write_text(line + "\nnonsense\n")
    assert reader.read() == [Update("a", "stage")]


def test_without_the_command_line_a_sentence_comes_now_and_then(monkeypatch):
    monkeypatch.delenv("KIMI_PROV_PROGRESS", raising=False)
    screen = Screen()
    for done in (10, 20, 30):
        progress.report(
            screen,
            "now-and-then",
            {"phase": "download", "done_bytes": done, "total_bytes": 40, "rate_bytes_per_s": 10e6},
        )
    assert screen.lines == ["now-and-then: download: 10 B of 40 B (25 %), 10.0 MB/s"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_600, "1.0 MB"),
        (594_800_000_000, "595 GB"),
    ],
)
def test_sizes_are_decimal(count, text):
    assert progress.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1:00"), (185, "3:05"), (3725, "1:02:05")],
)
def test_times_are_readable(seconds, text):
    assert progress.duration(seconds) == text
