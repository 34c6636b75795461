"""Machines are changed in turn, by Ansible itself; the first that fails ends the run.

The machines are stand-ins: each step writes down its host. Turns are the product's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kimi_prov.packaging import resources

ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
PLUGINS = resources.find_plugins()
STEPS = ("key", "lock", "lifecycle", "follow", "switch", "host", "verify", "web_data", "backup")
# A machine that was lost meets the product's own plugin, which waits for nothing here.
PLUGIN = """
import importlib
import json
from pathlib import Path
from ansible.plugins.action import ActionBase

HERE = Path(__file__).parent

class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        host = self._task.delegate_to or task_vars["inventory_hostname"]
        name, args = Path(__file__).stem.removeprefix("kimi_"), self._task.args
        keys = ("step", "state", "work", "call")
        words = " ".join([host, name, *(str(args[key]) for key in keys if key in args)])
        with (HERE / "told").open("a") as log:
            log.write(words + "\\n")
        if words in json.loads((HERE / "fails.json").read_text()):
            return {"failed": True, "msg": "it was not to be"}
        if gone := json.loads((HERE / "lost.json").read_text()).get(words):
            (HERE / f"{gone}.away").touch()
        if (HERE / f"{host}.away").exists():
            own = importlib.import_module(f"kimi_prov.ansible.plugins.action.kimi_{name}")
            own.wait_reachable = lambda action, patience_s, ask: ask()
            given = (self._connection, self._play_context, self._loader, self._templar)
            return own.ActionModule(self._task, *given, self._shared_loader_obj).run(tmp, task_vars)
        return {"changed": False, "started": True, "together": False, "timeout_s": 9,
                "unit": "u", "progress": "p"}
"""
# This machine, as long as the host was not lost.
CONNECTION = """
DOCUMENTATION = '''
name: near
options:
  away: {default: "", vars: [{name: away}]}
'''
from pathlib import Path
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import local

class Connection(local.Connection):
    transport = "near"

    def exec_command(self, *words, **more):
        away = self.get_option("away")
        if away and Path(away).exists():
            raise AnsibleConnectionFailure("ssh: connect to host 192.0.2.1: No route to host")
        return super().exec_command(*words, **more)
"""
# What `kimi_batch` asks a gateway, which answers here that it sends to the machine.
GATEWAY = """
import importlib

kimi_batch = importlib.import_module("kimi_prov.ansible.plugins.action.kimi_batch")

def answered(action, *words, stdin):
    with open({told!r}, "a") as log:
        place = [str(stdin[name]) for name in ("address", "port") if name in stdin]
        row = [str(action._task.delegate_to), words[0], stdin["host"], *place]
        log.write(" ".join(row) + "\\n")
    return {{"changed": False}}

kimi_batch.call_sent = answered
ActionModule = kimi_batch.ActionModule
"""


@dataclass
class Ran:
    """What a playbook did: its exit code, its steps in their order, and all that it said."""

    code: int
    told: list[str]
    said: str

    def of(self, *steps: str) -> list[str]:
        return [line for line in self.told if line.partition(" ")[2] in steps]


@pytest.fixture
def play(tmp_path: Path):
    """Run a playbook over hosts a, b and c."""
    told = tmp_path / "told"
    for name in STEPS:
        (tmp_path / f"kimi_{name}.py").write_text(PLUGIN)
    (tmp_path / "kimi_batch.py").write_text(GATEWAY.format(told=str(told)))
    (tmp_path / "connection").mkdir()
    (tmp_path / "connection" / "near.py").write_text(CONNECTION)
    (tmp_path / "ansible.cfg").write_text("")

    def run(
        name: str | Path,
        *words: str,
        fails: tuple[str, ...] = (),
        lost: dict[str, str] | None = None,
        gateways: tuple[str, ...] = (),
        own: dict[str, dict] | None = None,
        **more,
    ) -> Ran:
        (tmp_path / "fails.json").write_text(json.dumps(fails))
        (tmp_path / "lost.json").write_text(json.dumps(lost or {}))
        local = {"ansible_connection": "near", "ansible_become": False}
        machines = {
            host: {**variables, "away": str(tmp_path / f"{host}.away")}
            for host, variables in (own or {host: {} for host in "abc"}).items()
        }
        groups = {
            "kimi": {"hosts": machines, "vars": {**local, **more}},
            "kimi_gateway": {"hosts": {host: dict(local) for host in gateways}},
        }
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump(groups))
        told.unlink(missing_ok=True)
        playbook = name if isinstance(name, Path) else resources.find_playbook(name)
        done = subprocess.run(
            [ANSIBLE_PLAYBOOK, "-i", str(inventory), *words, str(playbook)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
                "ANSIBLE_ACTION_PLUGINS": f"{tmp_path}:{PLUGINS / 'action'}",
                "ANSIBLE_CONNECTION_PLUGINS": str(tmp_path / "connection"),
                "ANSIBLE_FILTER_PLUGINS": str(PLUGINS / "filter"),
                "ANSIBLE_LOCALHOST_WARNING": "False",
                "ANSIBLE_ROLES_PATH": f"{tmp_path}/roles:{resources.find_root() / 'roles'}",
            },
        )
        assert told.exists(), done.stdout + done.stderr
        return Ran(done.returncode, told.read_text().splitlines(), done.stdout + done.stderr)

    return run


def test_behind_a_gateway_one_machine_restarts_when_the_one_before_is_asked_again(play) -> None:
    ran = play("restart", gateways=("g", "h"))
    assert ran.code == 0, ran.said
    asked = ("lifecycle restart", *(f"gateway-return {host}" for host in "abc"))
    assert ran.of(*asked) == [
        line
        for host in "abc"
        for line in (
            f"{host} lifecycle restart",
            f"g gateway-return {host}",
            f"h gateway-return {host}",
        )
    ]


def test_without_a_gateway_all_are_changed_at_once(play) -> None:
    ran = play("restart")
    assert sorted(ran.told[3:6]) == [f"{host} lifecycle restart" for host in "abc"]
    assert not [line for line in ran.told if "gateway" in line]


def test_so_many_at_once_as_the_inventory_says(play) -> None:
    ran = play("restart", kimi_serial=2)
    first = ran.told.index("c lifecycle restart")
    assert {"a lifecycle outcome", "b lifecycle outcome"} <= set(ran.told[:first])
    assert sorted(ran.of("lifecycle restart")[:2]) == ["a lifecycle restart", "b lifecycle restart"]


@pytest.mark.parametrize(
    ("name", "step"), [("restart", "lifecycle restart"), ("rollback", "switch rollback")]
)
def test_the_first_that_fails_ends_the_run_and_no_lock_stays(play, name: str, step: str) -> None:
    ran = play(name, fails=(f"b {step}",), kimi_serial=1)
    assert ran.code != 0
    assert ran.of(step) == [f"a {step}", f"b {step}"]
    assert "not changed, because b failed: c" in ran.said
    assert {f"{host} lock absent" for host in "abc"} <= set(ran.told)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("restart", "lifecycle restart"),
        ("restart", "follow"),
        ("rollback", "switch rollback"),
        ("rollback", "follow"),
    ],
)
def test_the_first_that_is_lost_ends_the_run_and_no_lock_of_others_stays(
    play, name: str, step: str
) -> None:
    """Of a host that Ansible calls unreachable it would run nothing more, and name nobody."""
    ran = play(name, lost={f"b {step}": "b"}, kimi_serial=1)
    assert ran.code != 0
    assert ran.of(step) == [f"a {step}", f"b {step}"]
    assert "not changed, because b failed: c" in ran.said
    assert {f"{host} lock absent" for host in "abc"} <= set(ran.told)


def test_one_that_went_away_before_its_turn_is_told_as_one_that_is_lost_in_it(play) -> None:
    ran = play("restart", lost={"a lifecycle outcome": "b"}, kimi_serial=1)
    assert ran.of("lifecycle restart") == ["a lifecycle restart"]
    assert "not changed, because b failed: c" in ran.said
    assert "c lock absent" in ran.told


def test_one_that_waits_and_is_lost_too_takes_no_lock_of_others_along(play) -> None:
    ran = play(
        "restart", fails=("b lifecycle restart",), lost={"c lock absent": "c"}, kimi_serial=1
    )
    assert "c was not reached: its apply lock stays" in " ".join(ran.said.split())
    assert "b lock absent" in ran.told


def test_one_that_fails_beside_another_leaves_those_after_both(play) -> None:
    ran = play("restart", fails=("a lifecycle restart",), kimi_serial=2)
    assert ran.code != 0
    assert sorted(ran.of("lifecycle restart")) == ["a lifecycle restart", "b lifecycle restart"]
    # What was begun is ended.
    assert ran.of("lifecycle outcome") == ["b lifecycle outcome"]
    assert "c: not changed: a failed before its batch" in " ".join(ran.said.split())
    assert {f"{host} lock absent" for host in "abc"} <= set(ran.told)


def test_a_machine_that_has_no_lock_is_left_out_and_the_others_go_on(play) -> None:
    ran = play("restart", fails=("a lock present",), kimi_serial=1)
    assert ran.code != 0
    assert ran.of("lifecycle restart") == ["b lifecycle restart", "c lifecycle restart"]


def test_a_limit_leaves_the_turns_of_the_others(play) -> None:
    ran = play("restart", "--limit", "a,c", kimi_serial=1)
    assert ran.code == 0, ran.said
    assert ran.of("lifecycle restart", "lifecycle outcome") == [
        "a lifecycle restart", "a lifecycle outcome", "c lifecycle restart", "c lifecycle outcome",
    ]  # fmt: skip


def test_a_key_is_changed_on_one_machine_after_the_other_and_shown_of_all_at_once(play) -> None:
    fails = ("a key",)
    assert play("key", "-e", "kimi_key_add=new", fails=fails).told == ["a key"]
    assert sorted(play("key", fails=fails).told) == ["a key", "b key", "c key"]


def test_gateways_are_verified_after_the_machines_also_where_one_of_these_fails(play) -> None:
    ran = play("verify", gateways=("g", "h"), fails=("a verify", "b verify", "c verify"))
    assert ran.code != 0
    assert sorted(ran.told[:3]) == ["a verify", "b verify", "c verify"]
    assert sorted(ran.told[3:]) == ["g verify", "h verify"]
    assert sorted(play("verify").told) == ["a verify", "b verify", "c verify"]


def test_what_the_page_keeps_is_carried_from_who_has_it(play) -> None:
    words = ("-e", "web_work=backup", "-e", "web_file=/f")
    carried = play("web", *words, gateways=("g", "h")).of("web_data backup")
    assert carried == ["g web_data backup"]
    assert len(play("web", *words).of("web_data backup")) == 3


def test_gateways_are_backed_up_with_the_machines(play) -> None:
    words = ("-e", "backup_work=backup", "-e", "backup_file=/f")
    ran = play("backup", *words, gateways=("g",))
    assert sorted(ran.of("backup backup")) == [f"{host} backup backup" for host in "abcg"]


@pytest.fixture
def update(play, tmp_path: Path):
    """Update a head and its rank, one after the other: what is done to each is written down."""
    for step in ("prepare", "main", "restart", "prove", "undrain"):
        file = tmp_path / "roles" / "update" / "tasks" / f"{step}.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump([{"name": step, "kimi_lifecycle": {"step": step}}]))
    tasks = resources.find_playbook("update").parent / "tasks" / "update_machine.yml"
    steps = [{"ansible.builtin.include_tasks": str(tasks), "vars": {"batch_apart": True}}]
    playbook = tmp_path / "update.yml"
    whole = {"hosts": "kimi", "serial": 1, "gather_facts": False, "tasks": steps}
    playbook.write_text(yaml.safe_dump([whole]))
    members = [{"host": host} for host in "ab"]
    quiet = {"action": "none", "restart": False}

    def run(**more) -> Ran:
        own = {
            host: {"kimi_plan": {"group": {"rank": rank, "members": members}, "driver": quiet}}
            for rank, host in enumerate("ab")
        }
        return play(playbook, own=own, __update_found={"restart": False}, **more)

    return run


def test_who_waits_for_a_driver_is_named_and_has_no_lock_where_one_is_lost(
    play, tmp_path: Path
) -> None:
    for role, step in (("nvidia_driver", "driver"), ("plan", "plan")):
        file = tmp_path / "roles" / role / "tasks" / "main.yml"
        file.parent.mkdir(parents=True)
        file.write_text(yaml.safe_dump([{"name": step, "kimi_lifecycle": {"step": step}}]))
    tasks = resources.find_playbook("site").parent / "tasks" / "driver_change.yml"
    whole = {"hosts": "kimi", "serial": 1, "gather_facts": False}
    playbook = tmp_path / "driver.yml"
    playbook.write_text(
        yaml.safe_dump([{**whole, "tasks": [{"ansible.builtin.include_tasks": str(tasks)}]}])
    )
    ran = play(playbook, lost={"b lifecycle driver": "b"}, kimi_facts={"kimi": {}})
    assert ran.code != 0
    assert ran.of("lifecycle driver") == ["a lifecycle driver", "b lifecycle driver"]
    assert "not changed, because b failed: a, c" in ran.said
    assert {f"{host} lock absent" for host in "abc"} <= set(ran.told)


STEPS_OF_B = ["b lock present", "a lock present", "b lifecycle prepare", "b lifecycle main"]
END_OF_B = ["b lock absent", "a lock absent"]


def test_the_head_does_not_rest_while_another_host_of_its_group_is_updated(update) -> None:
    ran = update()
    assert ran.code == 0, ran.said
    alone = [
        f"a {step}"
        for step in ("lock present", "lifecycle prepare", "lifecycle main", "lifecycle prove")
    ]
    assert ran.told == [*alone, "a lock absent", *STEPS_OF_B, "b lifecycle prove", *END_OF_B]


def test_the_head_may_rest_again_where_the_update_of_another_host_failed(update) -> None:
    ran = update(fails=("b lifecycle main",))
    assert ran.code != 0
    assert ran.told[-len(STEPS_OF_B) - 3 :] == [*STEPS_OF_B, "b lifecycle undrain", *END_OF_B]


def test_an_apply_tells_the_gateways_where_a_machine_is_from_now_on(play, tmp_path: Path) -> None:
    """A restart does not: what the inventory says meanwhile was not applied."""
    tasks = resources.find_root() / "playbooks" / "tasks" / "return.yml"
    step = {"name": "Wait", "ansible.builtin.import_tasks": str(tasks)}
    machines = {"a": {"ansible_host": "10.0.0.1", "kimi_port": 9000}, "b": {}}
    found = {}
    for moves in (True, False):
        book = [
            {
                "name": "Some at a time",
                "hosts": "kimi",
                "gather_facts": False,
                "tasks": [{**step, "vars": {"batch_moves": True}} if moves else step],
            }
        ]
        file = tmp_path / "returns.yml"
        file.write_text(yaml.safe_dump(book))
        done = play(file, gateways=("gw1",), own=machines, kimi_model="kimi-k2.5")
        assert done.code == 0, done.said
        found[moves] = sorted(done.told)
    assert found[True] == ["gw1 gateway-return a 10.0.0.1 9000", "gw1 gateway-return b b 8000"]
    assert found[False] == ["gw1 gateway-return a", "gw1 gateway-return b"]
    site = yaml.safe_load(resources.find_playbook("site").read_text())
    steps = [task for part in site for task in part.get("tasks", [{}])[0].get("block", ())]
    (asked,) = [task for task in steps if "tasks/return.yml" in str(task)]
    assert asked["vars"] == {"batch_moves": True}
