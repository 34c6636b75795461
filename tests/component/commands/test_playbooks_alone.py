"""`ansible-playbook` alone, from the wheel and from the checkout, and from somebody's playbooks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
# Plans are made of this machine, which lacks what the model needs: the plan says so.
INVENTORY = """
kimi:
  hosts: {here: {ansible_connection: local, ansible_become: false}}
  vars: {kimi_model: kimi-k2.5, ansible_python_interpreter: PYTHON}
""".replace("PYTHON", sys.executable)
OURS = """
- name: Prepare the machine as this site does
  hosts: kimi
  gather_facts: false
  roles: [site_base]
- name: Plan for Kimi
  ansible.builtin.import_playbook: "{{ lookup('ansible.builtin.env', 'KIMI_PLAYBOOKS') }}/plan.yml"
- name: Use the plan
  hosts: kimi
  gather_facts: false
  tasks:
    - name: Say what was planned
      ansible.builtin.debug: {msg: "planned {{ kimi_plan.model.name }}"}
"""


@pytest.fixture(params=["wheel", "checkout"])
def alone(request, installed, unpacked, tmp_path):
    """A folder with an inventory, and the command line of the wheel or of the checkout."""
    site = unpacked if request.param == "wheel" else REPOSITORY
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hosts.yml").write_text(INVENTORY)
    environment = {**installed.environment, "PYTHONPATH": str(site), "LC_ALL": "C.UTF-8"}

    def run(*words, code=0, **variables):
        done = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def ask(*words, **options):
        return run(*installed.argv("playbooks", *words), **options)

    return folder, run, ask


def read_environment(ask):
    lines = ask("--env").stdout.splitlines()
    words = [shlex.split(line) for line in lines]
    assert all(first == "export" and len(rest) == 1 for first, *rest in words), lines
    return dict(rest.split("=", 1) for _, rest in words)


def test_every_playbook_is_read_with_its_roles_and_plugins(alone):
    _, run, ask = alone
    place = Path(ask("--path").stdout.strip())
    books = sorted(place.glob("*.yml"))
    assert place / "site.yml" in books
    variables = read_environment(ask)
    done = run(ANSIBLE_PLAYBOOK, "--syntax-check", "-i", "hosts.yml", *books, **variables)
    assert "[WARNING]" not in done.stderr


def test_a_playbook_of_somebody_else_imports_ours_under_their_own_configuration(alone):
    folder, run, ask = alone
    (folder / "ansible.cfg").write_text("[defaults]\nroles_path = shared\nforks = 3\n")
    (folder / "shared/site_base/tasks").mkdir(parents=True)
    (folder / "shared/site_base/tasks/main.yml").write_text(
        "- name: Greet\n  ansible.builtin.debug: {msg: the site's own role}\n"
    )
    (folder / "all.yml").write_text(OURS)
    variables = {**read_environment(ask), "KIMI_PLAYBOOKS": ask("--path").stdout.strip()}
    assert "ANSIBLE_CONFIG" not in variables
    done = run(ANSIBLE_PLAYBOOK, "-i", "hosts.yml", "all.yml", **variables)
    assert "the site's own role" in done.stdout
    assert "planned kimi-k2.5" in done.stdout


def test_their_role_of_the_same_name_is_refused(alone):
    folder, _, ask = alone
    (folder / "ansible.cfg").write_text("[defaults]\nroles_path = shared\n")
    (folder / "shared/firewall").mkdir(parents=True)
    refused = ask("--env", code=2).stderr
    assert str(folder / "shared/firewall") in refused
    assert "fix: rename it" in refused


def test_the_list_names_each_playbook_and_what_it_does(alone):
    _, _, ask = alone
    said = ask().stdout
    place = Path(said.splitlines()[0])
    for book in place.glob("*.yml"):
        assert f"  {book.name} " in said
    assert [line for line in said.splitlines()[1:] if len(line) > 80] == []
    assert os.fspath(place) == ask("--path").stdout.strip()
