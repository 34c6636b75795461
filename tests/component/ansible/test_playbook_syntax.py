"""Ansible's own check of each playbook: it has the groups, and no variables of hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_prov.packaging import resources

GROUPS = {
    "one machine": "kimi: {hosts: {one: }}",
    "machines that serve together": "kimi: {children: {pair: {hosts: {one: , two: }}}}",
    "gateways and who watches": (
        "kimi: {hosts: {one: }}\nkimi_gateway: {hosts: {gw: }}\nkimi_monitor: {hosts: {eye: }}"
    ),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_ansible_finds_no_fault_in_any_playbook(tmp_path: Path, groups: str) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(f"{groups}\n")
    playbooks = sorted((resources.find_root() / "playbooks").glob("*.yml"))
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "--syntax-check",
            "-i",
            hosts,
            *playbooks,
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "ANSIBLE_CONFIG": str(resources.find_root() / "ansible.cfg")},
    )
    assert done.returncode == 0, done.stderr
    assert "[WARNING]" not in done.stderr
    assert playbooks
