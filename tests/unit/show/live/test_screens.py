import io
import re

import pytest
from rich.cells import cell_len

from kimi_prov.runner.events import Diff, TaskFinished, TaskStarted
from kimi_prov.runner.progress import ProgressUpdate
from kimi_prov.show.live import plain, screens
from kimi_prov.show.live.plain import PlainScreen
from kimi_prov.show.live.screen import LiveScreen

LONG = "Wait until every one of the weights has been fetched and verified and marked as such"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drive(screen, hosts=2):
    screen.start("apply inventories/a-rather-long-name-of-an-inventory/with/folders/below/it/hosts")
    for number in range(hosts):
        host = f"machine-number-{number}.example.com"
        screen.event(TaskStarted(host, "engine", "Install"))
        screen.event(TaskFinished(host, "engine", "Install", "x", "changed", 1.0, {}))
        screen.event(TaskStarted(host, "weights", LONG))
        screen.progress(
            ProgressUpdate(
                host, "download", LONG, 10**11, 6 * 10**11, rate_bytes_per_s=1e9, eta_s=500
            )
        )
        screen.tick()
    screen.event(
        TaskFinished("machine-number-0.example.com", "weights", LONG, "x", "failed", 1.0, {})
    )
    screen.stop()


def test_plain_lines_have_no_control_codes():
    out = io.StringIO()
    drive(PlainScreen(out))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out.getvalue())
    assert re.search(r"example.com +engine +done in .* 1 changed", out.getvalue())
    assert re.search(r"number-0.example.com +weights +failed in", out.getvalue())


def test_a_silent_host_says_what_it_is_at(monkeypatch):
    monkeypatch.setattr(plain, "_QUIET_S", 0.0)
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.event(TaskStarted("a", "engine", "Install the packages"))
    screen.tick()
    assert "Install the packages" in out.getvalue()


def test_a_diff_is_shown():
    out = io.StringIO()
    PlainScreen(out).event(Diff("a", "--- before\n+++ after\n+x"))
    assert "a:\n--- before" in out.getvalue()


def shown(out):
    """What came since the last call, control codes taken out."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    out.seek(0)
    out.truncate()
    return text


@pytest.mark.parametrize("kind", [PlainScreen, LiveScreen])
def test_a_host_that_fails_is_no_longer_shown_at_work(monkeypatch, kind):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(plain, "_QUIET_S", 0.0)
    out = Terminal()
    screen = kind(out)
    screen.start("apply hosts.yml")
    for host in ("refused", "healthy"):
        screen.event(TaskStarted(host, "preflight", "Assert"))
        screen.event(TaskFinished(host, "preflight", "Assert", "x", "ok", 1.0, {}))
    screen.event(TaskStarted("refused", "preflight", "Meet the plan"))
    screen.tick()
    assert "Meet the plan" in shown(out)
    screen.event(TaskFinished("refused", "preflight", "Meet the plan", "x", "failed", 1.0, {}))
    assert re.search(r"refused +preflight", shown(out))
    screen.tick()
    assert "refused" not in shown(out)
    # What clears up after it shows while it works, and not between two tasks.
    screen.event(TaskStarted("refused", "lock", "Release the lock"))
    screen.tick()
    assert "Release the lock" in shown(out)
    screen.event(TaskFinished("refused", "lock", "Release the lock", "x", "changed", 1.0, {}))
    screen.tick()
    told = shown(out)
    assert "refused" not in told
    assert "healthy" in told
    screen.stop()
    told = shown(out)
    assert re.search(r"refused +lock", told)
    assert not re.search(r"refused +preflight", told)


@pytest.mark.parametrize("columns", [80, 50])
def test_the_live_screen_keeps_to_its_width(monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    out = Terminal()
    drive(LiveScreen(out))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", out.getvalue())
    assert "download: 93.1 GiB" in plain
    assert max(cell_len(line) for line in re.split(r"[\r\n]+", plain)) <= columns


def test_with_many_hosts_the_live_screen_keeps_to_its_height(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    out = Terminal()
    drive(LiveScreen(out), hosts=30)
    assert "more hosts" in out.getvalue()


def test_no_color_is_kept(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    def coloured():
        out = Terminal()
        drive(LiveScreen(out))
        return bool(re.search(r"\x1b\[(?:\d+;)*(?:3[0-9]|9[0-9])m", out.getvalue()))

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()


def test_without_a_terminal_the_plain_screen_is_taken(monkeypatch):
    assert isinstance(screens.choose(io.StringIO()), PlainScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screens.choose(Terminal()), PlainScreen)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screens.choose(Terminal()), LiveScreen)


@pytest.mark.parametrize("kind", [PlainScreen, LiveScreen])
def test_what_machines_say_does_not_steer_the_screen(monkeypatch, kind):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plain, "_QUIET_S", 0.0)
    monkeypatch.setattr(plain, "_UPDATE_S", 0.0)
    evil = "\x1b]0;title\x07\x9b2J\u202e\u200b[blink]"
    out = Terminal()
    screen = kind(out)
    screen.start(f"apply {evil}")
    screen.event(TaskStarted(f"a{evil}", f"r{evil}", f"t{evil}"))
    screen.tick()
    screen.progress(ProgressUpdate(f"a{evil}", f"p{evil}", f"l{evil}", 1, 2))
    screen.tick()
    screen.event(Diff(f"a{evil}", f"+{evil}"))
    screen.say(evil)
    screen.event(TaskFinished(f"a{evil}", f"r{evil}", f"t{evil}", "x", "failed", 1.0, {}))
    screen.stop()
    told = out.getvalue()
    assert not re.search("\x1b\\]|[\x07\x9b\u202e\u200b]", told)
    # Marks of rich's own are text where a machine writes them.
    assert told.count("[blink]") >= 6
