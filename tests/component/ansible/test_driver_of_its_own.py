"""The driver's role on the machine that the run is on: by Ansible itself, up to the restart.

The driver's steps and systemd-run are stand-ins that write down what they are told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    Role = Callable[..., tuple[str, list[str]]]

ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
PLUGINS = resources.find_plugins()
PLUGIN = """
import json
from pathlib import Path
from kimi_prov.ansible.plugins.action.kimi_driver import ActionModule as ActionModule_of_product

HERE = Path(__file__).parent

class ActionModule(ActionModule_of_product):
    def run(self, tmp=None, task_vars=None):
        step = self._task.args["step"]
        with (HERE / "told").open("a") as log:
            log.write(step + "\\n")
        if step == "leave":
            return super().run(tmp, task_vars)
        said = json.loads((HERE / "scene.json").read_text()).get(step, {})
        return {"changed": True, **said}
"""
SILENT = {"failed": True, "msg": "gpu1: nvidia-smi lists 0 of 8 GPUs", "why": "no GPU answers"}


@pytest.fixture
def role(tmp_path: Path) -> Role:
    """Run a file of the role's tasks; returns the output and what was done in its order."""
    (tmp_path / "kimi_driver.py").write_text(PLUGIN)
    told = tmp_path / "told"
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{told}\n')
    program.chmod(0o755)

    def run(file: str, **scene: object) -> tuple[str, list[str]]:
        (tmp_path / "scene.json").write_text(json.dumps(scene))
        (tmp_path / "ansible.cfg").write_text("")
        tasks = {"name": "nvidia_driver", "tasks_from": file, "rolespec_validate": False}
        play = {
            "hosts": "all",
            "gather_facts": False,
            "vars": {
                "ansible_python_interpreter": sys.executable,
                "kimi_plan": {"driver": {"version": "580.159.04"}},
                "__nvidia_driver_consent": {"itself": True},
            },
            "tasks": [{"name": "Run them", "ansible.builtin.include_role": tasks}],
        }
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        done = subprocess.run(
            [ANSIBLE_PLAYBOOK, "-i", "gpu1,", "-c", "local", "play.yml"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
                "ANSIBLE_ROLES_PATH": str(resources.find_root() / "roles"),
                "ANSIBLE_ACTION_PLUGINS": f"{tmp_path}:{PLUGINS / 'action'}",
                "ANSIBLE_FILTER_PLUGINS": str(PLUGINS / "filter"),
            },
        )
        assert told.exists(), done.stdout + done.stderr
        return done.stdout, told.read_text().splitlines()

    return run


def restarts(told: list[str]) -> list[str]:
    return [line for line in told if line.endswith("systemctl reboot")]


def test_the_restart_is_recorded_before_it_comes(role: Role) -> None:
    said, told = role("restart_self")
    assert told[0] == "restarts", said
    assert told[-1] == "leave", said
    assert len(restarts(told)) == 1
    assert "this run ends with it" in said


def test_what_answers_after_the_boot_is_held_and_nothing_restarts(role: Role) -> None:
    _, told = role("confirm")
    assert told == ["answer"]


def test_what_does_not_answer_is_gone_back_from_by_one_restart(role: Role) -> None:
    said, told = role("confirm", answer=SILENT, rollback={"version": "570.133.20", "why": "none"})
    assert told[:2] == ["answer", "rollback"]
    assert len(restarts(told)) == 1
    # Nothing waits for a restart that ends the run.
    assert told.count("answer") == 1
    assert "the machine restarts into 570.133.20, which ran before" in " ".join(said.split())


def test_where_there_is_none_to_go_back_to_nothing_restarts(role: Role) -> None:
    refused = {"failed": True, "msg": "there is no rollback from 580.159.04"}
    said, told = role("confirm", answer=SILENT, rollback=refused)
    assert told == ["answer", "rollback"]
    assert "there is no rollback from 580.159.04" in said
