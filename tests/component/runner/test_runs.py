"""Real playbooks on this machine, run through ansible-runner."""

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from kimi_prov.errors import ExitCode
from kimi_prov.show.text import run_summary


def result(finished):
    return json.loads((finished.folder / "result.json").read_text())


def test_a_good_run_is_kept_with_its_log_and_times(play, monkeypatch):
    monkeypatch.setattr("kimi_prov.show.live.plain._UPDATE_S", 0.0)
    told = '{"host": "one", "phase": "download", "done_bytes": 5, "total_bytes": 10}'
    before = set(Path(tempfile.gettempdir()).glob(f"kimi-{os.getpid()}-*"))
    finished, shown = play(
        f"- shell: |\n    echo '{told}' >> $KIMI_PROV_PROGRESS; sleep 0.5\n"
        "- {debug: {msg: quiet}, failed_when: true, ignore_errors: true}"
    )
    outcome = finished.outcome
    # What is ignored is no failure.
    assert outcome.failures == []
    assert outcome.exit_code() is ExitCode.OK
    assert outcome.changed == {"one": 1}
    assert "one: download: 5 B of 10 B (50 %)" in shown
    assert "TASK [shell]" in finished.log.read_text()
    times = json.loads((finished.folder / "timings.json").read_text())
    assert times["wall_seconds"] >= sum(phase["seconds"] for phase in times["phases"]) > 0
    assert result(finished)["hosts"]["one"] == {
        "ok": 2,
        "changed": 1,
        "failed": 0,
        "unreachable": 0,
    }
    assert "\x1b" not in shown + finished.log.read_text()
    # The run folder is the operator's alone, and the private one is gone.
    assert stat.S_IMODE(finished.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in finished.folder.iterdir()} == {0o600}
    assert set(Path(tempfile.gettempdir()).glob(f"kimi-{os.getpid()}-*")) == before == set()


THREE = "kimi:\n  hosts: {one: {}, two: {}, three: {}}\n  vars: {ansible_connection: local}\n"


def test_a_failure_is_told_without_noise_and_what_is_rescued_is_none(play, hosts_file):
    hosts_file.write_text(THREE)
    finished, _ = play(
        """
- command: "false"
  ignore_errors: true
  when: inventory_hostname == 'two'
- when: inventory_hostname == 'three'
  block:
    - command: "false"
  rescue:
    - debug: {msg: mended}
- name: Break it
  command: sh -c 'echo the disk said no >&2; exit 3'
  when: inventory_hostname == 'one'
"""
    )
    (failure,) = finished.outcome.failures
    text = run_summary.format_failures([failure], finished.log)
    assert finished.outcome.exit_code() is ExitCode.FAILED
    assert "failed: one, other: Break it" in text
    assert "the disk said no" in text
    assert str(finished.log) in text
    assert "{" not in text


VERDICT = """
from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import build_failure


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        code = task_vars["inventory_hostname"]
        return build_failure(f"{code} it is", "mend it", code)
"""


def test_a_plugins_own_verdict_decides_the_exit_code(play, tmp_path, monkeypatch):
    plugin = tmp_path / "action" / "kimi_verdict.py"
    plugin.parent.mkdir()
    plugin.write_text(VERDICT)
    monkeypatch.setattr("kimi_prov.packaging.resources.find_plugins", lambda: tmp_path)
    path = tmp_path / "four.yml"
    path.write_text("kimi: {hosts: {blockers: {}, locked: {}, bad_input: {}, failed: {}}}\n")
    finished, _ = play("- name: Ask\n  kimi_verdict:", inventory=path)
    assert {f.host: f.exit_code for f in finished.outcome.failures} == {
        "blockers": ExitCode.BLOCKED,
        "locked": ExitCode.BLOCKED,
        "bad_input": ExitCode.BAD_INPUT,
        "failed": ExitCode.FAILED,
    }
    assert {(f.fix, f.phase) for f in finished.outcome.failures} == {("mend it", "verdict")}
    assert finished.outcome.exit_code() is ExitCode.BAD_INPUT


# As the system does to a run whose processes it ends; Ansible then says nothing of itself.
END_ANSIBLE = r"""
for p in $(pgrep -f ansible-playbook); do
  tr "\0" "\n" < /proc/$p/environ | grep -qx "KIMI_PROV_RUN=$KIMI_PROV_RUN" && kill -TERM $p
done
"""


def test_a_run_that_ends_without_its_summary_is_no_success(play):
    finished, _ = play(f"- shell: {json.dumps(END_ANSIBLE)}\n- debug: {{msg: unheard}}")
    assert finished.outcome.exit_code() is ExitCode.FAILED
    assert [failure.cause for failure in finished.outcome.failures] == [
        "Ansible's last reports were lost: what the run did on the hosts is not known"
    ]


# What Ansible sends is taken first: of a pipe that breaks, it tells nothing but that.
UNKNOWN_KEY = """#!/bin/sh
timeout 1 cat > /dev/null
echo "Host key verification failed." >&2
exit 255
"""
# A stand-in for ssh on a busy machine: it takes nothing more, and says why a while later.
SLOW_TO_SAY = """#!/bin/sh
exec <&-
sleep 1
echo "ssh: connect to host 127.0.0.1 port 9: Connection refused" >&2
exit 255
"""
# A module that is piped to an ssh that has just ended may hide ssh's reason, on a busy machine.
FAR = """
kimi:
  hosts:
    far: {ansible_pipelining: false, task: command}
    secret: {task: key}
    late_plan: {task: plan, ansible_ssh_executable: LATE, kimi_model: kimi-k2.5}
    late_lock: {task: lock, ansible_ssh_executable: LATE}
    new: {task: command, ansible_ssh_executable: NEW, ansible_host: 192.0.2.7}
  vars: {ansible_host: 127.0.0.1, ansible_port: 9}
kimi_gateway:
  hosts:
    gw: {task: command, ansible_ssh_executable: NEW, ansible_host: 192.0.2.8}
"""
ASK = """- hosts: all
  gather_facts: false
  tasks:
    - {command: uptime, when: task == 'command'}
    - {kimi_key: {rotate: false}, when: task == 'key'}
    - {kimi_plan: , when: task == 'plan'}
    - {kimi_lock: {state: present}, when: task == 'lock'}
"""


def test_why_a_host_is_not_reached_is_told_by_whatever_task_and_where_ssh_says_it_late(
    play, tmp_path
):
    path, text = tmp_path / "far.yml", FAR
    for word, script in (("LATE", SLOW_TO_SAY), ("NEW", UNKNOWN_KEY)):
        ssh = tmp_path / f"ssh-{word}"
        ssh.write_text(script)
        ssh.chmod(0o755)
        text = text.replace(word, str(ssh))
    path.write_text(text)
    finished, _ = play(ASK, inventory=path)
    failures = {failure.host: failure for failure in finished.outcome.failures}
    assert {failure.exit_code for failure in failures.values()} == {ExitCode.UNREACHABLE}
    refused = "127.0.0.1 refused the connection: no SSH server listens on that port"
    hosts = ("far", "secret", "late_plan", "late_lock")
    assert {host: failures[host].cause for host in hosts} == dict.fromkeys(hosts, refused)
    # What fixes a login names the machine's address, a gateway's as well.
    assert "ssh-keyscan 192.0.2.7 " in failures["new"].fix
    assert "ssh-keyscan 192.0.2.8 " in failures["gw"].fix


def test_hosts_that_cannot_be_used_have_their_own_code_and_say_why(play, tmp_path):
    path = tmp_path / "bare.yml"
    path.write_text(
        "kimi: {hosts: {bare: "
        "{ansible_connection: local, ansible_python_interpreter: /nosuch/python3}}}\n"
    )
    finished, _ = play("- command: uptime", inventory=path)
    (failure,) = finished.outcome.failures
    assert failure.exit_code is finished.outcome.exit_code() is ExitCode.UNREACHABLE
    assert failure.cause == "there is no /usr/bin/python3 on bare"


def test_a_template_that_fails_is_named_with_what_mends_it(play, hosts_file):
    hosts_file.write_text(
        "kimi:\n  hosts:\n    one:\n      kimi_port: '{{ 1/0 }}'\n"
        "    two:\n      kimi_context: '{{ nosuch }}'\n"
        "  vars: {ansible_connection: local, kimi_model: kimi-k2.5}\n"
    )
    finished, _ = play("- kimi_plan:")
    failures = {failure.host: failure for failure in finished.outcome.failures}
    fixes = (
        ("one", "4: kimi_port", "correct the template"),
        ("two", "6: kimi_context", "define the variable"),
    )
    for host, place, fix in fixes:
        assert failures[host].exit_code is ExitCode.BAD_INPUT
        assert failures[host].cause.startswith(f"{hosts_file}:{place}: ")
        assert failures[host].fix.startswith(fix)


def test_a_broken_playbook_says_so(play):
    finished, _ = play("- nosuchmodule: {}")
    assert finished.outcome.exit_code() is ExitCode.FAILED
    assert "nosuchmodule" in finished.outcome.failures[0].cause


def test_secrets_reach_neither_log_nor_result_nor_arguments(play, tmp_path, hosts_file):
    token = tmp_path / "token"
    token.write_text("plain-canary-0815\n")
    hosts_file.write_text(
        "kimi:\n  hosts: {one: {}}\n"
        "  vars: {ansible_connection: local, kimi_hf_token_file: token, "
        "ansible_become_password: become-canary-4711}\n"
    )
    finished, shown = play(
        """
- debug: {msg: "a sk-kimi-canary01 b hf_canarycanary c {{ given }}"}
- command: "echo 'Authorization: Bearer canary-bearer' plain-canary-0815 become-canary-4711"
- shell: "tr '\\\\0' ' ' < /proc/*/cmdline 2>/dev/null | grep -c 'given.can[a]ry' || true"
  register: seen
- fail: {msg: "hf_canarycanary, seen {{ seen.stdout }}"}
""",
        variables={"given": "sk-kimi-given-canary"},
    )
    kept = "".join(path.read_text() for path in finished.folder.iterdir())
    assert "canary" not in kept
    assert "canary" not in shown
    assert "canary" not in run_summary.format_failures(finished.outcome.failures, finished.log)
    assert "seen 0" in finished.outcome.failures[0].cause


def test_check_mode_lists_what_would_change(play, tmp_path):
    target = tmp_path / "file"
    finished, shown = play(
        f"- name: Write it\n  copy: {{content: x, dest: {target}}}", check=True, diff=True
    )
    assert finished.outcome.changes == [("one", "other", "Write it")]
    assert not target.exists()
    assert "+x" in shown


def test_a_large_result_is_not_lost(play, tmp_path, monkeypatch):
    plugin = tmp_path / "action" / "kimi_plan.py"
    plugin.parent.mkdir()
    plugin.write_text(
        "from ansible.plugins.action import ActionBase\n"
        "class ActionModule(ActionBase):\n"
        "    def run(self, tmp=None, task_vars=None):\n"
        "        return {'kimi_document': {'big': 'x' * 900000}}\n"
    )
    monkeypatch.setattr("kimi_prov.packaging.resources.find_plugins", lambda: tmp_path)
    finished, _ = play("- kimi_plan:")
    assert len(finished.outcome.plans["one"]["big"]) == 900000


TURNS = """- hosts: kimi
  gather_facts: false
  tasks:
    - set_fact: {kimi_batch: true}
- hosts: kimi
  serial: 1
  gather_facts: false
  tasks:
    - kimi_batch: {state: begin}
    - set_fact: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 9}
      when: inventory_hostname == 'b'
    - command: uptime
"""


def test_who_waits_for_its_turn_is_named_where_one_before_it_is_lost(play, tmp_path):
    """Whatever task that is: Ansible ends there, and runs nothing more of it."""
    path = tmp_path / "hosts.yml"
    path.write_text("kimi: {hosts: {a: {}, b: {}, c: {}}, vars: {ansible_connection: local}}\n")
    finished, _ = play(TURNS, inventory=path)
    outcome = finished.outcome
    assert outcome.exit_code() is ExitCode.UNREACHABLE
    assert outcome.left == {"c": "not changed: b failed before its batch"}
    assert outcome.warnings == ["not changed, because b failed: c"]


def test_who_is_left_says_so_and_lets_the_lost_machine_decide(play, tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text(
        "kimi: {hosts: {a: {}, b: {}, c: {}}, vars: {ansible_connection: local, kimi_serial: 2}}\n"
    )
    finished, _ = play(TURNS.replace("serial: 1", "serial: 2"), inventory=path)
    assert finished.outcome.exit_code() is ExitCode.UNREACHABLE
    causes = {failure.host: failure.cause for failure in finished.outcome.failures}
    assert causes["c"] == "c: not changed: b failed before its batch"


@pytest.mark.parametrize(
    ("limit", "code"), [(None, ExitCode.UNREACHABLE), ("head", ExitCode.BAD_INPUT)]
)
def test_a_host_of_a_group_lets_the_one_that_it_waits_for_decide(play, tmp_path, limit, code):
    """It is bad input only where the other one was left out on purpose."""
    path = tmp_path / "hosts.yml"
    path.write_text(
        "kimi: {hosts: {head: {ansible_connection: local}, rank1: {ansible_host: 127.0.0.1, "
        "ansible_port: 9}}, vars: {kimi_model: kimi-k2.5, kimi_hosts_per_model: 2}}\n"
    )
    role = "- import_role: {name: plan, rolespec_validate: false}\n  vars: {plan_lock: false}"
    finished, _ = play(role, inventory=path, limit=limit)
    failures = {failure.host: failure for failure in finished.outcome.failures}
    assert "rank1 of group kimi was not described" in failures["head"].cause
    assert finished.outcome.exit_code() is code
