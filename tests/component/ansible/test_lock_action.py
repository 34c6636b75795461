"""A machine that has waited for its turn is changed under the lock that its run took, or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kimi_prov.on_host.system import apply_lock

ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
# The product's action; the machine's code runs here, on a lock of this test.
ACTION = """
import importlib
import json

from kimi_prov.on_host.system import apply_lock

kimi_lock = importlib.import_module("kimi_prov.ansible.plugins.action.kimi_lock")
kimi_lock.call_sent = lambda _action, *words: apply_lock.acquire(json.loads(words[2]), {path!r})
ActionModule = kimi_lock.ActionModule
"""
OTHER = {"run": "b", "user": "root", "control_host": "two", "pid": 2}


@pytest.fixture
def turn(tmp_path: Path):
    """Take the lock, wait until something has happened to it, and begin the turn."""
    lock = tmp_path / "lock"
    (tmp_path / "kimi_lock.py").write_text(ACTION.format(path=str(lock)))

    def run(*meanwhile: str) -> subprocess.CompletedProcess[str]:
        steps = [
            {"name": "Take", "kimi_lock": {"state": "present"}},
            *({"name": "Wait", "ansible.builtin.command": step} for step in meanwhile),
            {"name": "Begin", "kimi_lock": {"state": "kept"}},
        ]
        book = [{"name": "Apply", "hosts": "gpu1", "gather_facts": False, "tasks": steps}]
        (tmp_path / "site.yml").write_text(yaml.safe_dump(book))
        return subprocess.run(
            [
                *(ANSIBLE_PLAYBOOK, "-i", "gpu1,", "-c", "local"),
                *("-e", f"ansible_python_interpreter={sys.executable}"),
                str(tmp_path / "site.yml"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "ANSIBLE_ACTION_PLUGINS": str(tmp_path),
                "ANSIBLE_LOCALHOST_WARNING": "False",
            },
        )

    return run


def test_who_has_waited_for_long_goes_on_where_nobody_came(turn, tmp_path: Path) -> None:
    long_ago = f"touch -d '3 hours ago' {tmp_path}/lock"
    done = turn(long_ago)
    assert done.returncode == 0, done.stdout + done.stderr


def test_who_lost_the_lock_to_a_run_that_has_ended_changes_nothing(turn, tmp_path: Path) -> None:
    done = turn(f"rm {tmp_path}/lock")
    assert done.returncode != 0
    assert "another run may have changed it" in done.stdout + done.stderr
    assert "run the same command again" in done.stdout + done.stderr


def test_who_lost_it_to_one_that_still_runs_is_told_who(turn, tmp_path: Path) -> None:
    apply_lock.acquire(OTHER, str(tmp_path / "other"))
    done = turn(f"cp {tmp_path}/other {tmp_path}/lock")
    assert done.returncode != 0
    assert "root@two" in done.stdout + done.stderr
