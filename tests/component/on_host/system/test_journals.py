"""How journals are read: bounds, cursors, waiting, and text of every kind."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from waiting import HANGS_S

from kimi_prov.contract import paths, unit_names
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.system import journals
from kimi_prov.on_host.system.local_secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Prints what it holds as journalctl would, and goes on if it is followed.
JOURNALCTL = """#!/bin/sh
printf '%s\\n' "$*" >> {0}/asked
case " $* " in
*" --follow "*) cat {0}/new; sleep {1} & trap 'kill $!' EXIT; wait;;
*" --reverse "*) tac {0}/kept;;
*) tail -n 1 {0}/kept;;
esac
"""
UNIT = unit_names.build_serve_name(0)


def row(number: int, message: Any = "", **more: Any) -> str:
    return json.dumps(
        {
            "__CURSOR": f"c{number}",
            "__REALTIME_TIMESTAMP": str(1_760_000_000_000_000 + number),
            "_SYSTEMD_UNIT": UNIT,
            "PRIORITY": "6",
            "MESSAGE": message or f"line {number}",
            **more,
        }
    )


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Stand a journalctl in front of the machine's."""

    def make(kept: list[str], new: list[str] | None = None, lasts_s: float = 30) -> Path:
        (tmp_path / "kept").write_text("".join(f"{line}\n" for line in kept))
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in new or []))
        program = tmp_path / "journalctl"
        program.write_text(JOURNALCTL.format(tmp_path, lasts_s))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path

    return make


def test_the_last_lines_come_oldest_first_with_a_cursor_to_go_on_from(journal: Any) -> None:
    folder = journal([row(1), row(2, priority=3), row(3, PRIORITY="3")])
    found = journals.read_last([UNIT, unit_names.PROXY], 100)
    assert [entry["message"] for entry in found["entries"]] == ["line 1", "line 2", "line 3"]
    assert found["entries"][2] == {
        "time_us": 1_760_000_000_000_003,
        "unit": UNIT,
        "priority": 3,
        "message": "line 3",
    }
    assert (found["cursor"], found["cut"]) == ("c3", False)
    asked = (folder / "asked").read_text()
    assert f"--unit={UNIT} --unit=kimi-proxy.service" in asked
    assert "--lines=100" in asked


def test_too_many_bytes_cut_the_oldest(journal: Any) -> None:
    journal([row(number, "x" * 500) for number in range(1, 9)])
    found = journals.read_last([UNIT], 100, most_bytes=2500)
    assert found["cut"]
    assert 2 <= len(found["entries"]) < 8
    assert found["entries"][-1]["time_us"] % 1000 == 8


def test_a_journal_without_a_line_of_ours_gives_the_cursor_of_anybodys(journal: Any) -> None:
    folder = journal([])
    assert journals.read_last([UNIT], 5)["cursor"] == ""
    (folder / "kept").write_text(row(7) + "\n")
    # Nothing of ours is found, and yet there is a journal.
    (folder / "journalctl").write_text(
        JOURNALCTL.format(folder, 1).replace(f"tac {folder}/kept", "true")
    )
    assert journals.read_last([UNIT], 5)["cursor"] == "c7"


def test_new_lines_are_waited_for_and_come_at_once(journal: Any) -> None:
    folder = journal([], [row(4), "no json", row(5)])
    started = time.monotonic()
    found = journals.read_after([UNIT], "c3", 5 * HANGS_S)
    assert time.monotonic() - started < HANGS_S
    assert [entry["message"] for entry in found["entries"]] == ["line 4", "line 5"]
    assert found["cursor"] == "c5"
    assert "--follow --no-tail --after-cursor=c3" in (folder / "asked").read_text()


def test_where_nothing_comes_the_cursor_stays(journal: Any) -> None:
    journal([])
    found = journals.read_after([UNIT], "c3", 0.2)
    assert found == {"entries": [], "cursor": "c3", "cut": False}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([104, 105, 255], "hi\ufffd"),
        (["one", "two"], "one two"),
        (None, ""),
        ("y" * 9000, "y" * 8192 + "... (808 more characters)"),
        (12, "12"),
    ],
)
def test_a_message_of_any_form_is_text(journal: Any, value: Any, text: str) -> None:
    line = json.loads(row(1))
    line["MESSAGE"] = value
    journal([json.dumps(line)])
    assert journals.read_last([UNIT], 1)["entries"][0]["message"] == text


def test_what_systemd_says_of_a_unit_is_the_units(journal: Any) -> None:
    journal([row(1, "Started.", _SYSTEMD_UNIT="init.scope", UNIT=UNIT)])
    assert journals.read_last([UNIT], 1)["entries"][0]["unit"] == UNIT


def test_the_machines_secrets_are_masked(
    tmp_path: Path, journal: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    root = tmp_path / "root"
    for name, text in {
        paths.MACHINE_KEY: "engine m4chine-key-canary\n",
        paths.VERIFY_KEY: "sk-verify-canary\n",
        paths.HUB_TOKEN: "token-canary",
        paths.WEB_SECRETS: "WEBUI_SECRET_KEY=web-canary\nPORT=8443\nENABLE_SIGNUP=false\n",
        paths.FORWARD_PROXY: "HTTPS_PROXY=http://user:proxy-canary@10.0.0.1:3128\n",
    }.items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(journals, "Paths", lambda: paths.Paths(root))
    words = "m4chine-key-canary sk-verify-canary token-canary web-canary proxy-canary false 8443"
    journal([row(1, words)])
    assert main(["logs", "--units", UNIT]) == 0
    told = json.loads(capsys.readouterr().out)["entries"][0]["message"]
    assert "canary" not in told
    assert told.endswith("false 8443")


def test_a_machine_without_secrets_masks_nothing(tmp_path: Path) -> None:
    found = {"a": ["engine", 1, None], "b": "x"}
    assert Secrets(paths.Paths(tmp_path)).mask(found) == found


def test_no_journalctl_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["logs", "--units", UNIT]) != 0
    assert "journalctl cannot be run" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_answered_checks_are_left_out_and_take_no_place(journal: Any) -> None:
    engine = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.0" 200 OK'
    proxy = "127.0.0.1 - GET /metrics 200 in=90 out=12"
    failing = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.0" 503 Service Unavailable'
    asked = 'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    lines = [asked, engine, failing, proxy, asked, engine, engine]
    journal([row(number, text) for number, text in enumerate(lines, 1)])
    found = journals.read_last([UNIT], 2, routine=False)
    assert [entry["message"] for entry in found["entries"]] == [failing, asked]
    # What comes next is asked for after the newest line, which was left out.
    assert found["cursor"] == "c7"
    assert len(journals.read_last([UNIT], 100)["entries"]) == len(lines)
