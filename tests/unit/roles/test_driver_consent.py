"""Whether a machine may be restarted for its driver is decided here, before anything is sent."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.template import Templar, trust_as_template
from host_actions import Machine, run_action

from kimi_prov.ansible.plugins.action.kimi_driver import ActionModule

PLAN = {"driver": {"action": "install", "restart": True, "version": "580.159.04"}}


def asked(
    *,
    reboot_ok: object,
    reboot_self: object = False,
    transport: str = "ssh",
    facts: dict[str, Any] | None = None,
    **driver: Any,
) -> dict[str, Any]:
    """What the step says for a host `h1`."""
    plan = {"driver": PLAN["driver"] | driver}
    args = {"step": "consent", "plan": plan, "reboot_ok": reboot_ok, "reboot_self": reboot_self}
    variables = {"kimi_facts": {"host": facts or {}}}
    done = run_action(ActionModule, Machine({}), args, transport=transport, variables=variables)
    return {key: value for key, value in done.items() if key != "changed"}


def test_without_consent_it_is_a_blocker_with_what_mends_it() -> None:
    done = asked(reboot_ok=False)
    assert done["kimi"]["code"] == "blockers"
    (finding,) = done["kimi"]["findings"]
    assert finding["id"] == "driver.reboot"
    assert "nvidia_driver_reboot_ok: true for h1" in finding["fix"]


@pytest.mark.parametrize("word", ["true", "yes", 1, None])
def test_consent_is_the_word_true_alone(word: object) -> None:
    assert asked(reboot_ok=word)["failed"] is True


def test_with_consent_or_without_a_restart_it_passes() -> None:
    assert asked(reboot_ok=True) == {"itself": False}
    assert asked(reboot_ok=False, restart=False) == {}


def test_the_control_machine_is_never_restarted() -> None:
    assert "never restarted" in asked(reboot_ok=True, transport="local")["msg"]
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        pytest.skip("this computer has no machine id")
    own = hashlib.sha256(f"kimi-prov:{identity}".encode()).hexdigest()[:32]
    here = {"machine_id_hash": own, "hostname": socket.gethostname()}
    assert "never restarted" in asked(reboot_ok=True, facts=here)["msg"]
    # Machines made from one image share the id.
    assert asked(reboot_ok=True, facts=here | {"hostname": "another"}) == {"itself": False}


def test_the_control_machine_restarts_by_a_consent_of_its_own() -> None:
    """Whoever gives it goes on after the boot: kimi-up.service does."""
    here = asked(reboot_ok=True, reboot_self=True, transport="local")
    assert here == {"itself": True}
    # Never without the other, and never by a word that only looks like it.
    assert asked(reboot_ok=False, reboot_self=True, transport="local")["failed"] is True
    assert asked(reboot_ok=True, reboot_self="true", transport="local")["failed"] is True
    assert asked(reboot_ok=True, reboot_self=True) == {"itself": False}


@pytest.mark.parametrize(
    ("action", "missing", "waits"),
    [
        ("install", [], True),
        ("hold", [], False),
        # Before a change of the driver the host is prepared, with what it lacks.
        ("hold", ["haproxy"], True),
    ],
)
def test_the_locks_of_apt_are_waited_for_where_packages_change(
    action: str, missing: list[str], waits: bool
) -> None:
    tasks = Path(__file__).resolve().parents[3] / "roles/nvidia_driver/tasks/consent.yml"
    (task,) = [row for row in yaml.safe_load(tasks.read_text()) if "Wait" in row["name"]]
    plan = {"driver": {"action": action}, "packages": ["openssl", *missing]}
    facts = {"packages": {"installed": {"openssl": "3"}}}
    given = {"kimi_plan": plan, "kimi_facts": facts}
    condition = trust_as_template(f"{{{{ {task['when']} }}}}")
    assert Templar(variables=given).template(condition) is waits
