"""What a machine answers is held to its type where it arrives: a misfit fails it alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
from host_actions import Machine, run_action

from kimi_prov.ansible import answer_types, remote
from kimi_prov.ansible.plugins.action.kimi_host import ActionModule as HostAction
from kimi_prov.ansible.plugins.action.kimi_status import ActionModule as StatusAction
from kimi_prov.on_host.__main__ import COMMANDS

ENTRY = {
    "number": 1,
    "kind": "apply",
    "restores": None,
    "started_at": "2026-11-24T06:00:00Z",
    "ended_at": None,
    "by": None,
    "inventory": None,
    "kimi_prov": "0.1.0",
    "result": "done",
    "why": None,
    "returned_to": None,
    "serves": None,
    "gateway": None,
    "speed": None,
    "speed_before": None,
    "seconds_without_service": None,
    "restorable": True,
}
HISTORY = {"ok": True, "detail": "1 entry", "current": 1, "switch": None, "entries": [ENTRY]}
USAGE = {
    "ok": True,
    "detail": "",
    "uncounted": [],
    "rows": [
        {
            "day": "2026-11-24",
            "key": "operator",
            "last_at": 0,
            "requests": 1,
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "refused": {},
        }
    ],
}
NOT_PROVISIONED = {"ok": False, "provisioned": False, "detail": "not provisioned: no plan"}


def without(document: dict[str, Any], *path: Any) -> dict[str, Any]:
    """The document without a key, which is named by its way."""
    *way, key = path
    if not way:
        return {name: value for name, value in document.items() if name != key}
    first, *rest = way
    part = document[first]
    inner = without(part[rest[0]] if isinstance(part, list) else part, *rest[1:], key)
    return {**document, first: [inner] if isinstance(part, list) else inner}


def ask(command: str, answer: Any, **args: Any) -> dict[str, Any]:
    return run_action(HostAction, Machine(answer), {"call": command, **args})


@pytest.mark.parametrize(("command", "answer"), [("history", HISTORY), ("usage", USAGE)])
def test_an_answer_of_its_form_is_taken_and_so_is_one_of_a_newer_version(
    command: str, answer: dict[str, Any]
) -> None:
    assert ask(command, answer, document=True)["kimi_document"] == answer
    newer = {**answer, "of_tomorrow": 1}
    assert ask(command, newer, document=True)["kimi_document"] == newer


@pytest.mark.parametrize(
    ("command", "answer", "named"),
    [
        (
            "history",
            without(HISTORY, "entries", 0, "serves"),
            "entries[0]: key 'serves' is missing",
        ),
        ("history", {**HISTORY, "current": "last"}, "current: wanted a whole number"),
        ("usage", without(USAGE, "rows", 0, "key"), "rows[0]: key 'key' is missing"),
        ("usage", {**USAGE, "rows": {}}, "rows: wanted a list"),
        ("clean", {"ok": True, "items": [{"path": "/srv/kimi/engines/a"}]}, "items[0]: key 'kind'"),
    ],
)
def test_a_misfit_fails_the_machine_and_names_the_document_and_the_key(
    command: str, answer: dict[str, Any], named: str
) -> None:
    failed = ask(command, answer, document=True)
    assert failed["failed"]
    assert "kimi_document" not in failed
    message = failed["kimi"]["message"]
    assert message.startswith(
        f"the machine's answer to `{command}` has another form than expected: "
    )
    assert named in message
    assert "kimi-prov apply" in failed["kimi"]["fix"]
    # What reports of several hosts has it as this one's.
    told = ask(command, answer, document=True, on_error="document")
    assert not told.get("failed")
    assert told["kimi_document"]["ok"] is False
    assert named in told["kimi_document"]["detail"]


def test_a_status_that_is_none_is_that_host_s_detail() -> None:
    host = {"every": 0, "only_watches": False}
    done = run_action(StatusAction, Machine(NOT_PROVISIONED), host)
    assert done["kimi_document"]["detail"] == NOT_PROVISIONED["detail"]
    done = run_action(StatusAction, Machine({"ok": True, "provisioned": True}), host)
    assert done["kimi_document"]["ok"] is False
    assert "answer to `status` has another form than expected" in done["kimi_document"]["detail"]


def test_a_misfit_among_secrets_names_the_key_alone() -> None:
    failed = ask("keys", {"key": ["sk-canary"]}, arguments=["show"], secret=True)
    assert failed["failed"]
    assert "has another form than expected: key" in failed["kimi"]["message"]
    assert "canary" not in str(failed)


def test_a_machine_that_another_run_locked_answers_with_its_holder_alone() -> None:
    holder = {"user": "ana", "pid": 7, "run": "another-7-1"}
    locked = {"lock": {"held": False, "holder": holder, "age_s": 4}}
    words = ("probe", "--lock", "{}")
    assert remote.read_answer(words, locked) == locked
    for answer, asked in (
        (locked, ("probe",)),
        ({"lock": {"held": True, "holder": holder, "age_s": 0}}, words),
        ({"lock": {"held": False}}, words),
    ):
        with pytest.raises(remote.RemoteError, match="has another form than expected"):
            remote.read_answer(asked, answer)


def test_a_step_has_a_type_of_its_own() -> None:
    assert answer_types.find_type(["switch", "end"]) == "answers:SwitchEndAnswer"
    assert answer_types.find_type(["switch", "check"]) == "answers:Done"
    assert answer_types.find_type(["proxy-ensure", "--check"]) == "answers:ProxyAnswer"
    assert answer_types.find_type(["status", "--now"]) == "answers:NowAnswer"
    assert answer_types.find_type(["fetch"]) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_each_type_of_an_answer_is_there(name: str) -> None:
    kinds = COMMANDS[name].answer
    for kind in kinds.values() if isinstance(kinds, Mapping) else [kinds]:
        if kind is not None:
            module, _, of = kind.partition(":")
            assert hasattr(import_module(f"kimi_prov.contract.documents.{module}"), of)
