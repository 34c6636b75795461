"""The engine's own parser is asked: here an engine of a few lines, run by a real python."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from systemd_stand_in import StandIn, systemd_stand_in

from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.engine import command_check

ENGINE = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--mode", choices=["fast", "slow"])
parser.parse_args()
Path(__file__).with_name("STARTED").touch()
"""


@pytest.fixture(autouse=True)
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return systemd_stand_in(tmp_path / "systemd", monkeypatch)


@pytest.fixture
def env_dir(tmp_path: Path) -> Path:
    """An environment with a small engine in it."""
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{environment}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (environment / "engine.py").write_text(ENGINE)
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    return environment


def ask(
    env_dir: Path,
    *arguments: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...] = (),
) -> dict[str, Any]:
    argv = [f"{env_dir}/bin/python", "-m", "engine", *arguments]
    request = {"env_dir": str(env_dir), "gpus": False, "instances": [{"argv": argv, "env": {}}]}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    main(["engine-check", *options])
    return dict(json.loads(capsys.readouterr().out))


def test_an_accepted_command_line_is_not_asked_about_again(
    env_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ask(env_dir, "--port", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert first == {"ok": True, "changed": True}
    (env_dir / "engine.py").unlink()
    second = ask(env_dir, "--port", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert second == {"ok": True, "changed": False}


def test_the_parser_is_code_of_the_engine_and_runs_in_the_sandbox(
    env_dir: Path,
    systemd: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(env_dir, monkeypatch=monkeypatch, capsys=capsys)["ok"]
    assert "--unit=kimi-sandbox.service" in systemd.options
    assert "--property=SystemCallFilter=~sched_setaffinity" in systemd.options


def test_the_engine_is_never_started(
    env_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(env_dir, monkeypatch=monkeypatch, capsys=capsys)["ok"]
    assert not (env_dir / "STARTED").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gone", "4"], "unrecognized arguments: --gone 4"),
        (["--port", "many"], "argument --port: invalid int value: 'many'"),
        (["--mode", "odd"], "argument --mode: invalid choice: 'odd'"),
    ],
)
def test_a_refusal_names_the_flag_and_leaves_no_mark(
    env_dir: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = ask(env_dir, *arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert said in answer["error"]["message"]
    assert not (env_dir / command_check.MARKS).exists()


def test_an_engine_that_cannot_be_imported_is_a_refusal(
    env_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (env_dir / "engine.py").write_text("import not_installed_anywhere")
    answer = ask(env_dir, monkeypatch=monkeypatch, capsys=capsys)
    assert (
        answer["error"]["message"]
        == "ModuleNotFoundError: No module named 'not_installed_anywhere'"
    )


def test_an_engine_that_finds_no_room_blames_no_flag(
    env_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "No usable temporary directory found in ['/tmp', '/var/tmp']"
    (env_dir / "engine.py").write_text(f"raise FileNotFoundError({said!r})")
    answer = ask(env_dir, monkeypatch=monkeypatch, capsys=capsys)
    assert said in answer["error"]["message"]
    assert "free space" in answer["error"]["fix"]


def test_check_mode_asks_nothing(
    env_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask(env_dir, "--gone", monkeypatch=monkeypatch, capsys=capsys, options=("--check",))
    assert answer == {"ok": True, "changed": True}
