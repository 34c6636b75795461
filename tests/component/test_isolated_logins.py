"""A login user's modules are not imported by root's Python, tried with a real one."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kimi_prov.ansible.remote import RemoteError, call
from kimi_prov.ansible.send import call_sent
from kimi_prov.packaging import resources
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from pathlib import Path


ROLES = resources.find_root() / "roles"


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the login user lands, with modules of names that Python imports itself."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("json", "venv", "argparse", "huggingface_hub"):
        text = f"open({str(folder / 'imported')!r}, 'w').close()\nraise SystemExit('poisoned')\n"
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


class Action:
    """What runs a command on the machine, of an action plugin: a shell in that directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection = SimpleNamespace(_play_context=SimpleNamespace(no_log=False))

    def _low_level_execute_command(
        self, command: str, in_data: bytes | None = None
    ) -> dict[str, Any]:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            input=in_data or b"",
            capture_output=True,
            check=False,
        )
        return {
            "rc": done.returncode,
            "stdout": done.stdout.decode(),
            "stderr": done.stderr.decode(),
        }


def test_code_that_is_sent_runs_with_the_systems_modules(login: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    told = call_sent(Action(login), "manifest", str(weights))  # type: ignore[arg-type]
    assert [row["path"] for row in told["files"]] == ["config.json"]
    assert not (login / "imported").exists()


def test_code_on_the_machine_runs_with_the_systems_modules(login: Path, tmp_path: Path) -> None:
    zipapp = str(build_zipapp(tmp_path / "kimi-target.pyz"))
    with pytest.raises(RemoteError, match="usage: driver"):
        call(Action(login), "driver", "nothing", zipapp=zipapp)  # type: ignore[arg-type]
    assert not (login / "imported").exists()


@pytest.mark.parametrize("file", ["weights/tasks/hub_client.yml", "engine/tasks/uv.yml"])
def test_an_environment_is_made_with_the_systems_modules(
    login: Path, tmp_path: Path, file: str
) -> None:
    tasks: list[Any] = [*yaml.safe_load((ROLES / file).read_text(encoding="utf-8"))]
    for task in tasks:
        tasks += task.get("block", [])
    lines = [task.get("ansible.builtin.command", {}).get("argv", []) for task in tasks]
    [line] = [words for words in lines if "venv" in words and "/usr/bin/python3" in words]
    made = tmp_path / "made"
    command = [*line[:-1], "--without-pip", str(made)]
    subprocess.run(command, cwd=login, env=dict(os.environ), check=True)
    assert (made / "bin" / "python").exists()
    assert not (login / "imported").exists()
