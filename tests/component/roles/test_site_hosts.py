"""site.yml and update.yml over several hosts: who goes on when one is refused or fails.

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

from kimi_prov.packaging import resources

CHECKOUT = Path(__file__).resolve().parents[3]
PLAYBOOKS = CHECKOUT / "playbooks"
LOCK = """
from pathlib import Path
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = self._task.delegate_to or task_vars["inventory_hostname"]
        lock = Path(task_vars["locks"]) / host
        if self._task.args.get("applied"):
            (Path(task_vars["locks"]).parent / "noted").open("a").write(f"{host}\\n")
        lock.touch() if self._task.args["state"] == "present" else lock.unlink(missing_ok=True)
        return super().run(tmp, task_vars) | {"changed": False}
"""
STUBS = {
    "plan/tasks/main": """
- ansible.builtin.set_fact:
    kimi_plan:
      group: null
      driver: {action: "{{ action }}", restart: "{{ action != 'none' }}", repository: null}
      upgrade: {keep_versions: 2}
      web: "{{ {} if page else none }}"
      drift: {timer: false}
      metrics: null
      rest: {idle: null, wake: "off"}
      watchdog: {enabled: false}
      units:
        idle_timer: kimi-idle.timer
        wake_socket: kimi-wake.socket
        web: kimi-web.service
        drift_timer: kimi-drift.timer
        metrics_timer: kimi-metrics.timer
        node_exporter: kimi-node-exporter.service
        watchdog: kimi-watchdog.service
    kimi_facts: {kimi: {units: "{{ there }}", serving: "{{ serving }}"}}
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
    "preflight/tasks/main": """
- ansible.builtin.fail: {msg: "{{ inventory_hostname }} is no such machine"}
  when: not may
""",
    "engine/tasks/main": """
- ansible.builtin.debug: {msg: "installing {{ inventory_hostname }}"}
- ansible.builtin.fail: {msg: "{{ inventory_hostname }} has no room"}
  when: breaks
""",
    "update/tasks/look": """
- ansible.builtin.fail: {msg: "{{ inventory_hostname }} may not restart"}
  when: not may
- ansible.builtin.set_fact: {__update_found: {restart: "{{ kernel }}"}}
""",
    "update/tasks/restart": '- ansible.builtin.debug: {msg: "restarting {{ inventory_hostname }}"}',
    "update/tasks/prepare": '- ansible.builtin.debug: {msg: "draining {{ inventory_hostname }}"}',
    "update/tasks/main": '- ansible.builtin.debug: {msg: "updating {{ inventory_hostname }}"}',
    "update/tasks/prove": """
- ansible.builtin.fail: {msg: "{{ inventory_hostname }} does not pass"}
  when: breaks
- ansible.builtin.debug: {msg: "proven {{ inventory_hostname }}"}
""",
    "update/tasks/undrain": '- ansible.builtin.debug: {msg: "undrained {{ inventory_hostname }}"}',
    "metrics/tasks/converge": """
- ansible.builtin.debug: {msg: "metrics of {{ inventory_hostname }}"}
""",
    "web_ui/tasks/converge": '- ansible.builtin.debug: {msg: "page of {{ inventory_hostname }}"}',
    "ready/tasks/main": '- ansible.builtin.debug: {msg: "served {{ inventory_hostname }}"}',
}


# These say for which machines there is something to do.
REAL = ("metrics/tasks/main", "web_ui/tasks/main")


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


def run(
    folder: Path,
    *argv: str,
    playbook: str = "site",
    machines: str = "abc",
    **hosts: dict[str, Any],
) -> Done:
    """Run a playbook for machines; what is said of a host is told to its stand-ins.

    Others of which something is said are gateways.
    """
    plugins, locks, roles = (folder / name for name in ("action_plugins", "locks", "roles"))
    for path in (plugins, locks):
        path.mkdir()
    (plugins / "kimi_lock.py").write_text(LOCK)
    for role in (CHECKOUT / "roles").iterdir():
        for file in role.glob("tasks/*.yml"):
            stub = roles / role.name / "tasks" / file.name
            stub.parent.mkdir(parents=True, exist_ok=True)
            name = f"{role.name}/tasks/{file.stem}"
            stub.write_text(file.read_text() if name in REAL else STUBS.get(name, "[]"))
    usual = {"action": "install", "may": True, "breaks": False, "kernel": False, "there": {}}
    usual |= {"page": False}
    usual |= {"serving": {"kimi-serve@0.service": {}}}
    shared = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "locks": str(locks),
    }
    gateways = {name: usual | told for name, told in hosts.items() if name not in machines}
    inventory = {
        "kimi": {
            "hosts": {name: usual | hosts.get(name, {}) for name in machines},
            "vars": shared,
        },
        **({"kimi_gateway": {"hosts": gateways, "vars": shared}} if gateways else {}),
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "ansible.cfg").write_text("")
    shutil.copy(PLAYBOOKS / f"{playbook}.yml", folder)
    for part in ("site", "tasks"):
        shutil.copytree(PLAYBOOKS / part, folder / part)
    settings = {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(roles),
        "ANSIBLE_ACTION_PLUGINS": f"{plugins}:{resources.find_plugins() / 'action'}",
        "ANSIBLE_FILTER_PLUGINS": str(resources.find_plugins() / "filter"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "hosts.yml",
            f"{playbook}.yml",
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
    assert done.locks == [], done.said


def test_hosts_are_taken_one_after_the_other_and_then_served(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.code == 0, done.said
    assert done.hosts("changing") == ["a", "b", "c"]
    assert sorted(done.hosts("served")) == ["a", "b", "c"]
    assert done.locks == []


def turns(folder: Path, serial: int, **hosts: dict[str, Any]) -> Done:
    """Apply with so many at a time, where no driver is changed."""
    usual = {"action": "none", "kimi_serial": serial}
    return run(folder, **{name: usual | hosts.get(name, {}) for name in "abc"})


def test_an_apply_changes_one_after_the_other_and_ends_with_the_first_that_fails(
    tmp_path: Path,
) -> None:
    done = turns(tmp_path, 1, b={"breaks": True})
    assert done.code != 0
    assert (done.hosts("installing"), done.hosts("served")) == (["a", "b"], ["a"])
    assert "not changed, because b failed: c" in done.said
    assert done.locks == []


def test_who_is_refused_is_left_out_of_the_turns_and_who_serves_nothing_comes_first(
    tmp_path: Path,
) -> None:
    usual = {"action": "none", "kimi_serial": 1}
    hosts = {"b": {"serving": {}}, "c": {"serving": {}}, "d": {"may": False}}
    told = {name: usual | hosts.get(name, {}) for name in "abcd"}
    done = run(tmp_path, machines="abcd", **told)
    assert done.code != 0
    assert "d is no such machine" in done.said
    installed = done.hosts("installing")
    assert [sorted(installed[:2]), installed[2:]] == [["b", "c"], ["a"]]
    assert sorted(done.hosts("served")) == ["a", "b", "c"]
    assert done.locks == []


def test_without_turns_one_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, **{n: {"action": "none", "breaks": n == "a"} for n in "abc"})
    assert done.code != 0
    assert sorted(done.hosts("served")) == ["b", "c"]
    assert "not changed, because" not in done.said
    assert done.locks == []


def test_what_is_left_of_metrics_or_of_a_watch_is_seen_without_a_plan_for_any(
    tmp_path: Path,
) -> None:
    """Each unit by itself: a run may have been cut, and a host may only have watched others.

    A machine that never had any is not looked at for them.
    """
    left = ("kimi-metrics.timer", "kimi-node-exporter.service", "kimi-prometheus.service")
    hosts = {
        host: {"action": "none", "there": {unit: "active"}}
        for host, unit in zip("abc", left, strict=True)
    }
    done = run(tmp_path, machines="abcd", **hosts, d={"action": "none"})
    assert done.code == 0, done.said
    assert sorted(done.hosts("metrics of")) == ["a", "b", "c"]


def update(folder: Path, **hosts: dict[str, Any]) -> Done:
    """Run update.yml, for machines whose driver stays unless something else is said."""
    usual = {name: {"action": "none"} | hosts.get(name, {}) for name in (*"abc", *hosts)}
    return run(folder, playbook="update", **usual)


def test_gateways_are_updated_after_the_machines_and_never_both_at_once(tmp_path: Path) -> None:
    done = update(tmp_path, **{name: {"kimi_serial": 4} for name in "abcgh"})
    assert done.code == 0, done.said
    said = [line.partition('"msg": "')[2].rstrip('"}') for line in done.said.splitlines()]
    steps = [text for text in said if text]
    of_gateways = [f"{verb} {host}" for host in "gh" for verb in ("draining", "updating", "proven")]
    assert steps[-6:] == of_gateways
    assert sorted(done.hosts("proven")[:3]) == ["a", "b", "c"]
    assert done.locks == []


@pytest.mark.parametrize(
    ("fails", "updated", "left"), [("c", ["a", "b", "c"], "g, h"), ("g", ["a", "b", "c", "g"], "h")]
)
def test_one_that_fails_leaves_the_gateways_after_it(
    tmp_path: Path, fails: str, updated: list[str], left: str
) -> None:
    done = update(tmp_path, **{name: {"breaks": name == fails} for name in "abcgh"})
    assert done.code != 0
    assert done.hosts("updating") == updated
    assert f"not changed, because {fails} failed: {left}" in done.said
    assert done.locks == []


def test_the_first_machine_that_fails_ends_the_update(tmp_path: Path) -> None:
    done = update(tmp_path, b={"breaks": True})
    assert done.code != 0
    assert "b does not pass" in done.said
    assert (done.hosts("updating"), done.hosts("undrained")) == (["a", "b"], ["b"])
    assert done.hosts("proven") == ["a"]
    assert done.locks == []


def test_a_driver_that_goes_back_ends_the_update_too(tmp_path: Path) -> None:
    done = update(tmp_path, b={"action": "install", "breaks": True})
    assert done.code != 0
    assert "b went back" in done.said
    assert (done.hosts("updating"), done.hosts("undrained")) == (["a", "b"], ["b"])
    assert (done.hosts("changing"), done.hosts("proven")) == (["b"], ["a"])
    assert done.locks == []


def test_machines_are_updated_one_after_the_other_with_one_restart_for_kernel_and_driver(
    tmp_path: Path,
) -> None:
    """The driver's own is the one; it comes when the packages are there."""
    hosts = {"a": {"may": False}, "b": {"kernel": True}}
    hosts |= {"c": {"kernel": True, "action": "install"}, "d": {}}
    told = {name: {"action": "none"} | more for name, more in hosts.items()}
    done = run(tmp_path, playbook="update", machines="abcd", **told)
    # Who may not restart is not touched, and the others are updated.
    assert done.code != 0
    assert "a may not restart" in done.said
    said = [line.partition('"msg": "')[2].rstrip('"}') for line in done.said.splitlines()]
    verbs = ("draining", "updating", "restarting", "changing", "proven")
    assert [text for text in said if text.startswith(verbs)] == [
        *("draining b", "updating b", "restarting b", "proven b"),
        *("draining c", "updating c", "changing c", "proven c"),
        *("draining d", "updating d", "proven d"),
    ]
    assert done.locks == []


def test_what_was_applied_is_noted_of_gateways_too_and_of_none_that_failed(tmp_path: Path) -> None:
    """And the page starts on the gateway that has it, and goes where one is left."""
    hosts: dict[str, dict[str, Any]] = {name: {"action": "none"} for name in "abc"}
    hosts["b"] |= {"there": {"kimi-web.service": "active"}}
    done = run(tmp_path, **hosts, g={"page": True}, h={"may": False}, i={})
    assert done.code != 0
    assert sorted((tmp_path / "noted").read_text().split()) == ["a", "b", "c", "g", "i"]
    assert sorted(done.hosts("page of")) == ["b", "g"]
    assert done.locks == []
