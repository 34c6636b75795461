import json
import stat

from kimi_prov.runner import progress
from kimi_prov.runner.progress import ProgressReader, ProgressUpdate


class Screen:
    def __init__(self):
        self.lines = []

    def display(self, msg):
        self.lines.append(msg)


def test_what_a_plugin_reports_is_what_the_reader_gets(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    monkeypatch.setenv("KIMI_PROV_PROGRESS", str(path))
    reader = ProgressReader(path)
    assert reader.read() == []
    screen = Screen()
    progress.report_progress(
        screen, "a", {"phase": "download", "done_bytes": 1, "total_bytes": 4, "line": "x"}
    )
    progress.report_progress(screen, "b", {"phase": "start", "line": None})
    assert reader.read() == [
        ProgressUpdate("a", "download", "x", done_bytes=1, total_bytes=4),
        ProgressUpdate("b", "start"),
    ]
    assert reader.read() == []
    assert screen.lines == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "progress"
    line = json.dumps({"host": "a", "phase": "stage"})
    path.write_text(line[:9])
    reader = ProgressReader(path)
    assert reader.read() == []
    path.write_text(line + "\nnonsense\n")
    assert reader.read() == [ProgressUpdate("a", "stage")]


def test_without_the_command_line_a_sentence_comes_now_and_then(monkeypatch):
    monkeypatch.delenv("KIMI_PROV_PROGRESS", raising=False)
    screen = Screen()
    for done in (10, 20, 30):
        progress.report_progress(
            screen,
            "now-and-then",
            {"phase": "download", "done_bytes": done, "total_bytes": 40, "rate_bytes_per_s": 10e6},
        )
    assert screen.lines == ["now-and-then: download: 10 B of 40 B (25 %), 9.5 MiB/s"]
