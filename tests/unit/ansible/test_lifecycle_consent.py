"""A machine switches itself off by its inventory's word, and its own control machine by another."""

from __future__ import annotations

import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from host_actions import Machine, run_action

from kimi_prov.ansible.plugins.action.kimi_lifecycle import ActionModule


def answer(*, consent: bool, transport: str = "ssh", host: dict[str, Any] | None = None) -> Any:
    """What the role's first step says of a machine with this plan."""
    plan = {"rest": {"idle": {"action": "poweroff", "poweroff_self": consent}}}
    variables = {"kimi_facts": {"host": host or {}}}
    args = {"step": "consent", "plan": plan}
    done = run_action(ActionModule, Machine({}), args, transport=transport, variables=variables)
    return {key: value for key, value in done.items() if key != "changed"}


def test_another_machine_needs_no_more_than_the_action() -> None:
    assert answer(consent=False) == {}
    assert answer(consent=False, host={"hostname": "other", "machine_id_hash": "0" * 32}) == {}


def ourselves() -> dict[str, Any]:
    """This machine as its facts have it, reached by whatever address."""
    file = Path("/etc/machine-id")
    if not file.exists():
        pytest.skip("this machine has no /etc/machine-id")
    told = sha256(f"kimi-prov:{file.read_text().strip()}".encode()).hexdigest()[:32]
    return {"hostname": socket.gethostname(), "machine_id_hash": told}


@pytest.mark.parametrize("way", ["local", "ssh"])
def test_its_own_control_machine_is_refused_without_consent(way: str) -> None:
    reached = {"transport": way, "host": ourselves() if way == "ssh" else None}
    done = answer(consent=False, **reached)
    assert done["kimi"]["code"] == "blockers"
    (finding,) = done["kimi"]["findings"]
    assert (finding["id"], finding["severity"]) == ("rest.own_machine", "blocker")
    assert "kimi_idle_poweroff_self: true for h1" in finding["fix"]
    assert answer(consent=True, **reached) == {}
