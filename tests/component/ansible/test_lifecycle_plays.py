"""In which order the playbooks of stop, start and restart go over hosts, by Ansible itself.

The machines are stand-ins: each step writes down its host and what it was told.
"""

from __future__ import annotations

import itertools
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

    Play = Callable[..., tuple[int, list[str]]]

ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
PLUGINS = resources.find_plugins()
STEPS = ("kimi_lock", "kimi_lifecycle", "kimi_follow", "kimi_ready")
PLUGIN = """
import json
from pathlib import Path
from ansible.plugins.action import ActionBase
from kimi_prov.ansible.plugins.action.kimi_lifecycle import ActionModule as ActionModule_of_product
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.lifecycle.run import _require_whole_group

HERE = Path(__file__).parent

class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        self.variables = task_vars
        host, args = task_vars["inventory_hostname"], self._task.args
        scene = json.loads((HERE / "scene.json").read_text())
        name = Path(__file__).stem.removeprefix("kimi_")
        keys = ("step", "state", "part", "phase")
        words = [host, name, *(str(args[key]) for key in keys if key in args)]
        with (HERE / "told").open("a") as log:
            log.write(" ".join(words) + "\\n")
        if " ".join(words) == scene["fails"]:
            return {"failed": True, "msg": "it was not to be"}
        answer = {"changed": False}
        if args.get("step") in ("stop", "start", "restart") and scene["together"]:
            members = [{"host": name} for name in "ab"]
            try:
                _require_whole_group(
                    {"group": {"name": "g", "members": members}},
                    ActionModule_of_product._build_request(
                        self, {"drain_s": 0, "part": "serving", **args}
                    ),
                )
            except HostError as error:
                return {"failed": True, "msg": error.message}
        if args.get("step") == "stop":
            out = (args["part"] == "serving") == (host in scene["ranks"])
            answer |= {"left_out": out, "started": not out, "unit": "u", "progress": "p"}
        if args.get("step") == "restart":
            together = scene["together"]
            answer |= {"together": together, "started": not together, "timeout_s": 9}
            answer |= {"unit": "u", "progress": "p"}
        if args.get("step") == "start":
            answer |= {"was": "stopped", "fills": [], "timeout_s": 9}
        return answer
"""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a playbook over hosts a and b; returns the exit code and what was done in its order."""
    for name in STEPS:
        (tmp_path / f"{name}.py").write_text(PLUGIN)

    def run(name: str, *, together: bool, fails: str = "") -> tuple[int, list[str]]:
        scene = {"together": together, "ranks": ["b"] if together else [], "fails": fails}
        (tmp_path / "scene.json").write_text(json.dumps(scene))
        hosts = {host: {"ansible_connection": "local", "ansible_become": False} for host in "ab"}
        variables = {"kimi_hosts_per_model": 2 if together else 1}
        config = tmp_path / "ansible.cfg"
        config.write_text("")
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"kimi": {"hosts": hosts, "vars": variables}}))
        done = subprocess.run(
            [ANSIBLE_PLAYBOOK, "-i", str(inventory), str(resources.find_playbook(name))],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(config),
                "ANSIBLE_ACTION_PLUGINS": f"{tmp_path}:{PLUGINS / 'action'}",
                "ANSIBLE_FILTER_PLUGINS": str(PLUGINS / "filter"),
                "ANSIBLE_LOCALHOST_WARNING": "False",
            },
        )
        told = tmp_path / "told"
        assert told.exists(), done.stdout + done.stderr
        return done.returncode, in_turn(told.read_text().splitlines())

    return run


def in_turn(lines: list[str]) -> list[str]:
    """The lines with those of one task in the hosts' order: they come at the same time."""
    return [
        line
        for _, same in itertools.groupby(lines, key=lambda line: line.partition(" ")[2])
        for line in sorted(same)
    ]


def of(lines: list[str], *words: str) -> list[str]:
    """The lines with one of these words, in their order."""
    return [line for line in lines if any(word in line for word in words)]


def test_a_group_stops_where_clients_ask_first(play: Play) -> None:
    code, told = play("stop", together=True)
    assert code == 0
    assert of(told, "lifecycle stop", "follow") == [
        "a lifecycle stop serving",
        "b lifecycle stop serving",
        "a follow stop",
        "b lifecycle stop rank",
        "b follow stop",
    ]
    assert told[-2:] == ["a lock absent", "b lock absent"]


def test_a_group_restarts_as_one(play: Play) -> None:
    code, told = play("restart", together=True)
    assert code == 0
    order = of(told, "lifecycle ", "follow", "ready")
    stopped, started = order.index("b follow stop"), order.index("a lifecycle start")
    assert order[:2] == ["a lifecycle restart", "b lifecycle restart"]
    assert order.index("a follow stop") < order.index("b lifecycle stop rank") < stopped < started
    assert order[started:] == [
        "a lifecycle start", "b lifecycle start", "a ready", "b ready", "a lifecycle started",
        "b lifecycle started",
    ]  # fmt: skip
    # Nothing restarts by itself, and no outcome is told twice.
    assert not of(told, "follow restart", "outcome")


def test_a_group_whose_head_is_not_stopped_is_left_whole(play: Play) -> None:
    code, told = play("stop", together=True, fails="a lifecycle stop serving")
    assert code != 0
    # Asked, it refuses: the one that leads has failed.
    assert told[-3:] == ["b lifecycle stop rank", "a lock absent", "b lock absent"]


def test_a_group_that_is_not_stopped_is_not_started(play: Play) -> None:
    code, told = play("restart", together=True, fails="b lifecycle stop rank")
    assert code != 0
    # The one that leads is stopped by then: alone it does not start.
    assert of(told, "lifecycle start", "ready") == ["a lifecycle start"]
    assert told[-2:] == ["a lock absent", "b lock absent"]


def test_hosts_of_their_own_do_not_wait_for_one_another(play: Play) -> None:
    code, told = play("stop", together=False, fails="a lifecycle stop serving")
    assert code != 0
    assert "b follow stop" in told
    assert "b lifecycle outcome" in told
    assert "a lifecycle outcome" not in told


def test_instances_of_a_host_are_the_machines_own_to_restart(play: Play) -> None:
    code, told = play("restart", together=False)
    assert code == 0
    for host in "ab":
        assert [line for line in told if line.startswith(host)] == [
            f"{host} lock present",
            f"{host} lifecycle restart",
            f"{host} follow restart",
            f"{host} lifecycle outcome",
            f"{host} lock absent",
        ]


def test_a_start_waits_for_an_answer_and_notes_it(play: Play) -> None:
    code, told = play("start", together=True)
    assert code == 0
    assert of(told, "lifecycle", "ready") == [
        "a lifecycle start", "b lifecycle start", "a ready", "b ready", "a lifecycle started",
        "b lifecycle started",
    ]  # fmt: skip
