"""`kimi-prov diagnose --log`: the answer as JSON and text, and how the command ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import closed_form
import pytest
from command_line import run

if TYPE_CHECKING:
    from pathlib import Path

LOST = (
    "Feb  8 04:10:22 gpu-1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus."
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def document(*words: object) -> dict:
    done = run("diagnose", *words, "--format", "json")
    found = json.loads(done.stdout)
    closed_form.validate(found, "diagnose-log")
    return found


def test_the_cause_stands_first_with_its_line_and_what_to_do(log: Path) -> None:
    log.write_text(f"INFO fine\n{LOST}\n")
    (finding,) = document("--log", log)["findings"]
    assert finding["id"] == "diagnose.gpu_lost"
    assert finding["evidence"] == [{"source": str(log), "line": 2, "text": LOST}]
    assert "0000:c1:00" in finding["title"] + finding["cause"]
    assert finding["fix"]


def test_the_text_has_cause_and_fix_in_eighty_columns(log: Path) -> None:
    log.write_text(LOST + "\n")
    done = run("diagnose", "--log", log)
    assert done.returncode == 1
    assert "cause: " in done.stdout
    assert "fix: " in done.stdout
    lines = [line for line in done.stdout.splitlines() if str(log) not in line]
    assert max(map(len, lines)) <= 80


def test_a_log_without_a_trouble_ends_well(log: Path) -> None:
    log.write_text("INFO fine\n")
    done = run("diagnose", "--log", log)
    assert (done.returncode, done.stdout) == (0, "Nothing wrong was recognised in these lines.\n")
    assert document("--log", log)["first_error"] is None


def test_an_unknown_error_is_shown_with_its_surroundings(log: Path) -> None:
    log.write_text("before\nERROR the gadget broke\nafter\n")
    done = run("diagnose", "--log", log)
    assert done.returncode == 0
    assert "> ERROR the gadget broke" in done.stdout
    assert "before\n" in done.stdout
    assert "after\n" in done.stdout
    assert document("--log", log)["first_error"]["line"] == 2


def test_secrets_of_a_line_are_masked(log: Path) -> None:
    log.write_text("ERROR token hf_abcdefghijklmnop was refused by the gadget\n")
    assert "hf_abc" not in run("diagnose", "--log", log).stdout
    assert "********" in document("--log", log)["first_error"]["text"]


def test_several_logs_are_read_as_one_trouble(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(LOST + "\n")
    log.write_text("INFO fine\n")
    (finding,) = document("--log", log, "--log", other)["findings"]
    assert finding["evidence"][0]["source"] == str(other)


OWN_ROW = """\
- id: diagnose.own_gadget
  kind: fault
  title: The gadget broke
  products: [gadget]
  match: ['the gadget broke in two']
  cause: It was dropped.
  fix: Buy another.
  source: the workshop
  checked: 2026-11-30
  log: the gadget broke in two
  log_source: the workshop
"""


def test_a_row_of_the_site_is_recognised_too(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "site" / "troubles" / "own.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN_ROW)
    monkeypatch.setenv("KIMI_PROV_CATALOG", str(tmp_path / "site"))
    log.write_text("ERROR the gadget broke in two\n")
    (finding,) = document("--log", log)["findings"]
    assert (finding["id"], finding["fix"]) == ("diagnose.own_gadget", "Buy another.")


@pytest.mark.parametrize(
    "words",
    [(), ("--log", "absent.log"), ("x.ini", "--log", "y"), ("--log", "y", "--to", "z.tar.gz")],
)
def test_bad_input_ends_with_2(words: tuple[str, ...]) -> None:
    done = run("diagnose", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_an_unknown_exception_is_shown_whole_and_its_traceback_without_prefixes(log: Path) -> None:
    prefix = "(Worker_TP1 pid=10474) ERROR 11-30 11:37:24 [multiproc_executor.py:1057] "
    said = "frobnicate.Unheard: the spindle of " + "a very long name " * 6 + "is bent"
    frames = ["Traceback (most recent call last):", '  File "/srv/x.py", line 9, in spin']
    log.write_text("".join(f"{prefix}{line}\n" for line in [*frames, f"Exception: {said}"]))
    lines = run("diagnose", "--log", log).stdout.splitlines()
    shown = [line for line in lines if str(log) not in line]
    assert "    File" in "\n".join(shown)
    assert "Worker_TP1" not in "\n".join(shown)
    assert " ".join(" ".join(shown).split()).endswith(said)
    assert max(map(len, shown)) <= 80
