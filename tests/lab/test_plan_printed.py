"""The plan of a live machine: it changes nothing, and converging does not change it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines import CHECKOUT, LISTING, run

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab


def planned(host: Host, *args: str) -> dict:
    """The plan of `host`, through plain Ansible and the JSON of its result."""
    playbook = Path(sys.executable).parent / "ansible-playbook"
    source = CHECKOUT / "playbooks" / "plan.yml"
    done = run(
        str(playbook),
        "-i",
        str(host.inventory),
        str(source),
        "--limit",
        host.name,
        *args,
        cwd=CHECKOUT,
        env={"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_VERBOSITY": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if '"kimi_document"' in line)
    document: dict = json.loads(line[line.index("{") :])["kimi_document"]
    return document


def test_probing_leaves_the_file_system_as_it_was(virgin_host: Host) -> None:
    planned(virgin_host)
    before = virgin_host.ssh(LISTING)
    planned(virgin_host)
    assert virgin_host.ssh(LISTING) == before


def test_the_plan_on_the_machine_is_the_plan_that_is_made_again(served_host: Host) -> None:
    kept = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    again = planned(served_host)
    again.pop("findings")
    assert again == kept


def test_a_blocker_stops_the_run_before_anything_changes(virgin_host: Host) -> None:
    virgin_host.ssh("systemd-run --unit=other-web python3 -m http.server 8000")
    try:
        done = virgin_host.apply()
        assert done.returncode == 3, done.stdout + done.stderr
        said = done.stdout + done.stderr
        assert "port.taken" in said
        assert "kimi_port" in said
        assert virgin_host.ssh("ls -d /srv/kimi /etc/kimi 2>/dev/null; true") == ""
    finally:
        virgin_host.ssh("systemctl stop other-web")
