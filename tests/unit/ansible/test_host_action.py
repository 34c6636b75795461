"""One action calls the code on the machine: what it asks there, and what an answer means."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from host_actions import Machine, run_action

from kimi_prov.ansible.plugins.action.kimi_host import ActionModule

ERROR = {"error": {"message": "the disk is full", "fix": "make room", "retryable": False}}
BLOCKER = {
    "id": "bucket.absent",
    "observed": "s3://w is not there",
    "required": "a bucket",
    "fix": "fill it",
}
WARNING = {
    "id": "firewall.dropped_elsewhere",
    "observed": "chain input drops",
    "required": "port 8000 accepted",
    "fix": "accept it in that chain",
}


def run(answer: Any, **args: Any) -> tuple[dict[str, Any], Machine]:
    machine = Machine(answer)
    return run_action(ActionModule, machine, {"call": "web-data", **args}), machine


def test_the_answer_is_returned_and_says_whether_something_changed() -> None:
    done, machine = run({"changed": True, "door": 1}, arguments=["a b"], input={"x": [1]})
    assert not done.get("failed")
    assert done["changed"]
    assert done["answer"] == {"changed": True, "door": 1}
    (question,) = machine.questions
    assert (question.words, question.input) == (["web-data", "a b"], {"x": [1]})
    assert not question.sent


def test_the_code_is_sent_along_where_that_is_asked_for() -> None:
    done, machine = run({}, sent=True, input={"x": 1})
    assert done["answer"] == {}
    (question,) = machine.questions
    assert question.sent
    assert (question.words, question.input) == (["web-data"], {"x": 1})


@pytest.mark.parametrize("sent", [False, True])
def test_a_secret_is_kept_out_of_verbose_output(*, sent: bool) -> None:
    done, machine = run({"key": "sk-1"}, secret=True, sent=sent)
    assert done["answer"] == {"key": "sk-1"}
    assert machine.questions[0].secret
    assert not machine.context.no_log
    failed, _ = run("sk-1 is no JSON", secret=True, sent=sent)
    assert failed["failed"]
    assert "sk-1" not in str(failed)


@pytest.mark.parametrize(
    ("check", "asked"),
    [("flag", [["web-data", "--check"]]), ("run", [["web-data"]]), ("skip", [])],
)
def test_check_mode_asks_what_the_task_says(check: str, asked: list[list[str]]) -> None:
    machine = Machine({"changed": False})
    done = run_action(ActionModule, machine, {"call": "web-data", "check": check}, check=True)
    assert not done.get("failed")
    assert [question.words for question in machine.questions] == asked
    assert bool(done.get("skipped")) is (check == "skip")
    machine = Machine({"changed": False})
    run_action(ActionModule, machine, {"call": "web-data", "check": check})
    assert [question.words for question in machine.questions] == [["web-data"]]


def test_an_error_fails_with_its_own_fix() -> None:
    done, _ = run(ERROR)
    assert done["failed"]
    assert done["kimi"]["message"] == "the disk is full"
    assert done["kimi"]["fix"] == "make room"
    assert done["kimi"]["code"] == "failed"


def test_an_error_is_a_document_where_the_command_reports_it() -> None:
    done, _ = run(ERROR, on_error="document")
    assert not done.get("failed")
    assert done["kimi_document"] == {"ok": False, "detail": "the disk is full; make room"}


@pytest.mark.parametrize(("check", "changed"), [("flag", True), ("run", False)])
def test_what_is_not_installed_yet_fails_no_check_mode(check: str, *, changed: bool) -> None:
    done = run_action(
        ActionModule, Machine("absent"), {"call": "web-data", "check": check}, check=True
    )
    assert not done.get("failed")
    assert done["changed"] is changed
    assert "kimi-prov apply" in done["msg"]


def test_a_document_that_cannot_be_had_fails_check_mode_too() -> None:
    args = {"call": "destroy", "check": "flag", "document": True}
    assert run_action(ActionModule, Machine(ERROR), args, check=True)["failed"]


def test_an_answer_that_is_not_ok_fails_and_is_still_reported() -> None:
    answer = {"ok": False, "detail": "a mount is busy", "fix": "end what uses it", "kept": []}
    done, _ = run(answer, document=True)
    assert done["failed"]
    assert done["kimi_document"] == answer
    assert (done["kimi"]["message"], done["kimi"]["fix"]) == ("a mount is busy", "end what uses it")
    reported, _ = run(answer, on_error="document")
    assert not reported.get("failed")
    assert reported["kimi_document"] == answer


def test_blockers_of_the_machine_end_the_task_in_the_registrys_words() -> None:
    done, _ = run({"findings": [WARNING, BLOCKER]})
    assert done["failed"]
    assert done["kimi"]["code"] == "blockers"
    (row,) = done["kimi"]["findings"]
    assert (row["id"], row["severity"], row["observed"]) == (
        "bucket.absent",
        "blocker",
        "s3://w is not there",
    )
    assert row["title"] in done["kimi"]["message"]
    assert row["source"]


def test_warnings_of_the_machine_are_findings_of_the_run() -> None:
    done, _ = run({"findings": [WARNING]})
    assert not done.get("failed")
    (row,) = done["kimi"]["findings"]
    assert (row["id"], row["severity"]) == ("firewall.dropped_elsewhere", "warning")
    assert done["warnings"] == [f"{row['title']}: chain input drops"]


def test_what_stands_in_no_ones_way_is_said_and_no_finding_of_the_run() -> None:
    ready = {"id": "bucket.ready", "observed": "4 files", "required": "all", "fix": None}
    done, _ = run({"findings": [ready]})
    assert "4 files" in done["msg"]
    assert "kimi" not in done


@pytest.mark.parametrize("row", [{**WARNING, "id": "no.such"}, {"id": "bucket.absent"}, "x"])
def test_a_finding_that_is_unknown_here_fails_that_machine_alone(row: Any) -> None:
    done, _ = run({"findings": [row]})
    assert done["failed"]
    assert "unknown here" in done["msg"]


@pytest.mark.parametrize("args", [{"chek": "flag"}, {"check": "maybe"}, {"call": None}])
def test_a_task_with_a_wrong_argument_fails_in_check_mode_too(args: dict[str, Any]) -> None:
    given = {key: value for key, value in {"call": "web-data", **args}.items() if value}
    for check in (False, True):
        with pytest.raises(AnsibleActionFail):
            run_action(ActionModule, Machine({}), given, check=check)


def test_a_machine_that_is_not_reached_is_unreachable_for_ansible() -> None:
    with pytest.raises(AnsibleConnectionFailure):
        run(AnsibleConnectionFailure("no route"))
