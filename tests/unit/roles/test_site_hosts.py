"""playbooks/site.yml over several hosts: who goes on when a driver is refused or fails on one.

The plays are the real ones. Roles and the lock are stand-ins that say what they are asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[3]
SITE = CHECKOUT / "playbooks" / "site.yml"
LOCK = """
from pathlib import Path
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = self._task.delegate_to or task_vars["inventory_hostname"]
        lock = Path(task_vars["locks"]) / host
        lock.touch() if self._task.args["state"] == "present" else lock.unlink(missing_ok=True)
        return super().run(tmp, task_vars) | {"changed": False}
"""
STUBS = {
    "plan/tasks/main": """
- ansible.builtin.set_fact:
    kimi_plan:
      driver: {action: "{{ action }}", repository: null}
      upgrade: {keep_versions: 2}
      web: null
      drift: {timer: false}
      units: {web: kimi-web.service, drift_timer: kimi-drift.timer}
    kimi_facts: {kimi: {units: {}}}
- kimi_lock: {state: present}
""",
    "nvidia_driver/tasks/consent": """
- ansible.builtin.fail: {msg: "{{ inventory_hostname }} is refused"}
  when: not may
""",
    "nvidia_driver/tasks/main": """
- ansible.builtin.debug: {msg: "changing {{ inventory_hostname }}"}
- block:
    - ansible.builtin.fail: {msg: "{{ inventory_hostname }} does not answer"}
      when: breaks
  rescue:
    - ansible.builtin.fail: {msg: "{{ inventory_hostname }} went back"}
""",
    "ready/tasks/main": '- ansible.builtin.debug: {msg: "served {{ inventory_hostname }}"}',
}


@dataclass
class Done:
    """What a run came to."""

    said: str
    code: int
    locks: list[str]

    def hosts(self, word: str) -> list[str]:
        """Hosts of which something was said, in order."""
        found = [line.partition(f'"msg": "{word} ') for line in self.said.splitlines()]
        return [after.rstrip('",}') for _, middle, after in found if middle]


def run(folder: Path, *argv: str, **hosts: dict[str, Any]) -> Done:
    """Run the playbook for hosts a to c; what is said of one is told to its stand-ins."""
    plugins, locks, roles = (folder / name for name in ("action_plugins", "locks", "roles"))
    for path in (plugins, locks):
        path.mkdir()
    (plugins / "kimi_lock.py").write_text(LOCK)
    for role in (CHECKOUT / "roles").iterdir():
        for file in role.glob("tasks/*.yml"):
            stub = roles / role.name / "tasks" / file.name
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(STUBS.get(f"{role.name}/tasks/{file.stem}", "[]"))
    usual = {"action": "install", "may": True, "breaks": False}
    inventory = {
        "kimi": {
            "hosts": {name: usual | hosts.get(name, {}) for name in "abc"},
            "vars": {
                "ansible_connection": "local",
                "ansible_become": False,
                "ansible_python_interpreter": sys.executable,
                "locks": str(locks),
            },
        }
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "ansible.cfg").write_text("")
    (folder / "site.yml").write_text(SITE.read_text())
    shutil.copytree(SITE.parent / "tasks", folder / "tasks")
    settings = {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(roles),
        "ANSIBLE_ACTION_PLUGINS": str(plugins),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "hosts.yml",
            "site.yml",
            *argv,
        ],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    left = sorted(path.name for path in locks.iterdir())
    return Done(done.stdout + done.stderr, done.returncode, left)


def test_a_host_that_is_refused_does_not_end_the_run_of_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, a={"may": False}, c={"action": "none"})
    assert done.code != 0
    assert "a is refused" in done.said
    assert done.hosts("changing") == ["b"], done.said
    assert sorted(done.hosts("served")) == ["b", "c"]
    assert done.locks == []


@pytest.mark.parametrize("argv", [(), ("--tags", "nvidia_driver")], ids=["all", "the driver alone"])
def test_the_first_driver_that_fails_ends_the_run_and_no_lock_is_left(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    done = run(tmp_path, *argv, b={"breaks": True})
    assert done.code != 0
    assert "b went back" in done.said
    assert done.hosts("changing") == ["a", "b"], done.said
    assert done.hosts("served") == []
    assert done.locks == []


def test_hosts_are_taken_one_after_the_other_and_then_served(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.code == 0, done.said
    assert done.hosts("changing") == ["a", "b", "c"]
    assert sorted(done.hosts("served")) == ["a", "b", "c"]
    assert done.locks == []
