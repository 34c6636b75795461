"""What phase a task is of: its role, its action, or the playbook of a task that calls a machine."""

from __future__ import annotations

import pytest

from kimi_prov.runner.events import name_phase


@pytest.mark.parametrize(
    ("task", "phase"),
    [
        ({"role": "proxy", "task_action": "kimi_host"}, "proxy"),
        ({"task_action": "kimi_host", "playbook": "/opt/playbooks/history.yml"}, "history"),
        ({"task_action": "kimi_host"}, "other"),
        ({"task_action": "kimi_lock", "playbook": "/opt/playbooks/history.yml"}, "lock"),
        ({"task_action": "ansible.builtin.command", "playbook": "clean.yml"}, "other"),
    ],
)
def test_a_task_is_of_the_phase_that_a_reader_knows(task: dict[str, str], phase: str) -> None:
    assert name_phase(task) == phase
