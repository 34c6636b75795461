"""What an update is refused for, and what its document makes of what the steps told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import closed_form
import pytest
from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible.plugins.action.kimi_update import ActionModule
from kimi_prov.ansible.plugins.action.kimi_update import document as document_of
from kimi_prov.ansible.remote import RemoteError

KERNEL = {"name": "linux-image-amd64", "installed": "1", "candidate": "2", "kind": "kernel"}
FOUND = {"packages": [KERNEL], "left": [], "restart": True, "restart_reasons": [], "serves": True}
GIVEN = {
    "found": FOUND,
    "drained": {"began": 100.0, "left": 1},
    "installed": {"installed": [{"name": "linux-image-amd64", "from": "1", "to": "2"}]},
    "effect": {"began": 183.4, "restart_reasons": [], "stale_units": []},
    "verified": True,
    "driver": {"action": "none", "version": "580.1", "restart": False},
}


def told(**change: Any) -> dict[str, Any]:
    document = document_of({**GIVEN, **change})
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


def refused(reboot_ok: object, transport: str = "ssh") -> dict[str, Any]:
    task = SimpleNamespace(args={"reboot_ok": reboot_ok}, async_val=0, delegate_to=None)
    module = ActionModule(
        task=task,
        connection=SimpleNamespace(transport=transport, _shell=SimpleNamespace(tmpdir=None)),
        play_context=SimpleNamespace(),
        loader=None,
        templar=None,
        shared_loader_obj=None,
    )
    return module._refused({"inventory_hostname": "h1", "kimi_facts": {}}, FOUND)


@pytest.mark.parametrize("word", [False, None, "true", "yes", 1])
def test_without_the_word_true_a_machine_is_not_restarted(word: object) -> None:
    done = refused(word)
    assert done["kimi"]["code"] == "blockers"
    (finding,) = done["kimi"]["findings"]
    assert finding["id"] == "update.reboot"
    assert "update_reboot_ok: true for h1" in finding["fix"]
    assert "linux-image-amd64 2" in finding["observed"]


def test_with_consent_it_is_but_never_the_machine_that_this_runs_on() -> None:
    assert refused(reboot_ok=True) == {}
    assert "never restarted from here" in refused(reboot_ok=True, transport="local")["msg"]


def asked_other(monkeypatch: pytest.MonkeyPatch, answer: BaseException | None) -> dict[str, Any]:
    """What comes of asking the other gateway whether it serves, which answers so."""

    def call_sent(action: object, *words: str, stdin: object) -> dict[str, Any]:
        assert words == ("update", "serves")
        if answer:
            raise answer
        return {"ok": True, "changed": False}

    monkeypatch.setattr(f"{ActionModule.__module__}.call_sent", call_sent)
    task = SimpleNamespace(
        args={"step": "serves"}, async_val=0, delegate_to="gw2", check_mode=False, diff=False
    )
    module = ActionModule(
        task=task,
        connection=SimpleNamespace(
            transport="ssh", has_pipelining=False, _shell=SimpleNamespace(tmpdir=None)
        ),
        play_context=SimpleNamespace(),
        loader=None,
        templar=None,
        shared_loader_obj=None,
    )
    return module.run(task_vars={"inventory_hostname": "gw1"})


def test_a_gateway_restarts_only_beside_another_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not asked_other(monkeypatch, None).get("failed")
    silent = asked_other(monkeypatch, RemoteError("the other gateway sends to no machine"))
    assert silent["failed"]
    gone = asked_other(monkeypatch, AnsibleConnectionFailure("no route"))
    assert gone["failed"]
    assert not gone.get("unreachable")
    assert "gw2 is not reached" in gone["msg"]
