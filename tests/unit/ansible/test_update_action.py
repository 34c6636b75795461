"""What an update is refused for, and what its document makes of what the steps told."""

from __future__ import annotations

from typing import Any

import closed_form
import pytest
from ansible.errors import AnsibleConnectionFailure
from host_actions import Machine, run_action

from kimi_prov.ansible.plugins.action.kimi_update import ActionModule, build_document

KERNEL = {"name": "linux-image-amd64", "installed": "1", "candidate": "2", "kind": "kernel"}
FOUND = {
    "words": [],
    "packages": [KERNEL],
    "left": [],
    "restart": True,
    "restart_reasons": [],
    "serves": True,
}
GIVEN = {
    "found": FOUND,
    "drained": {"began": 100.0, "left": 1},
    "installed": {"installed": [{"name": "linux-image-amd64", "from": "1", "to": "2"}]},
    "effect": {"began": 183.4, "restart_reasons": [], "stale_units": []},
    "verified": True,
    "driver": {"action": "none", "version": "580.1", "restart": False},
}


def told(**change: Any) -> dict[str, Any]:
    document = build_document({**GIVEN, **change})
    whole = {"schema": "kimi-prov/update/v1", "ok": True, "hosts": {"h": document}}
    closed_form.validate(whole, "update")
    return document


def test_a_restart_is_told_with_its_seconds_and_what_was_cut() -> None:
    document = told()
    assert document["detail"] == "1 packages installed, restarted"
    assert (document["seconds_without_service"], document["requests_cut"]) == (83.4, 1)
    assert document["installed"][0]["kind"] == "kernel"
    assert document["driver"] is None


def test_where_nothing_was_served_no_seconds_are_counted() -> None:
    assert told(found={**FOUND, "serves": False})["seconds_without_service"] == 0
    quiet = told(found={**FOUND, "restart": False}, drained={"skipped": True})
    assert (quiet["restarted"], quiet["seconds_without_service"]) == (False, 0)


def test_a_driver_that_was_changed_is_told() -> None:
    driver = {"action": "install", "version": "580.2", "restart": True}
    document = told(found={**FOUND, "packages": [], "restart": False}, installed={}, driver=driver)
    assert (document["driver"], document["restarted"]) == ("580.2", True)
    assert document["detail"] == "driver changed, restarted"


def look(reboot_ok: object, transport: str = "ssh") -> dict[str, Any]:
    args = {"step": "look", "reboot_ok": reboot_ok}
    return run_action(ActionModule, Machine(FOUND), args, transport=transport)


@pytest.mark.parametrize("word", [False, None, "true", "yes", 1])
def test_without_the_word_true_a_machine_is_not_restarted(word: object) -> None:
    done = look(word)
    assert done["kimi"]["code"] == "blockers"
    (finding,) = done["kimi"]["findings"]
    assert finding["id"] == "update.reboot"
    assert "update_reboot_ok: true for h1" in finding["fix"]
    assert "linux-image-amd64 2" in finding["observed"]


def test_with_consent_it_is_but_never_the_machine_that_this_runs_on() -> None:
    assert not look(reboot_ok=True).get("failed")
    assert "never restarted from here" in look(reboot_ok=True, transport="local")["msg"]


def ask_other(answer: Any) -> dict[str, Any]:
    """What comes of asking the other gateway whether it serves, which answers so."""
    machine = Machine(answer)
    done = run_action(ActionModule, machine, {"step": "serves"}, delegate_to="gw2")
    assert [question.words for question in machine.questions] == [["update", "serves"]]
    return done


def test_a_gateway_restarts_only_beside_another_that_serves() -> None:
    assert not ask_other({"ok": True, "changed": False}).get("failed")
    assert ask_other({"error": {"message": "the other gateway sends to no machine"}})["failed"]
    gone = ask_other(AnsibleConnectionFailure("no route"))
    assert gone["failed"]
    assert not gone.get("unreachable")
    assert "gw2 is not reached" in gone["msg"]
