"""Action `kimi_host`: call a subcommand of the code on the machine, and return its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction, build_refusal, complete_findings
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.ansible.send import call_sent
from kimi_prov.show.text.findings import format_findings

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_host
short_description: Calls a subcommand of the code on the machine
description:
  - Returns C(answer), or C(kimi_document), which is the host's part of a command's document.
  - C(changed), C(changes) and C(warnings) of the answer become those of the task.
  - C(findings) of the answer are completed from the registry; the task fails with blockers.
  - An answer that says that it is not C(ok) fails the task with its C(detail) and C(fix).
options:
  call:
    type: str
    required: true
    description: The subcommand, as C(kimi_prov/on_host/__main__.py) lists them.
  arguments:
    type: list
    elements: str
    default: []
    description: Its arguments; they are visible in the process list.
  input:
    type: raw
    description: A value that is sent as JSON on its standard input.
  sent:
    type: bool
    default: false
    description: Send the code along, for a machine that has no code or another version.
  secret:
    type: bool
    default: false
    description: Keep its output out of Ansible's verbose lines; needs C(no_log) at the task too.
  check:
    type: str
    choices: [flag, run, skip]
    default: run
    description:
      - In check mode C(flag) adds the argument C(--check), C(skip) does not call the subcommand,
        and C(run) calls it as usual, for a subcommand that changes nothing.
      - An error does not fail the task then unless a document was requested, because a needed
        program may not be installed yet.
  document:
    type: bool
    default: false
    description: The answer is the host's part of a command's document.
  on_error:
    type: str
    choices: [fail, document]
    default: fail
    description: With C(document) an error becomes a document that is not C(ok), and no failure.
"""


class ActionModule(HostAction):
    """One call, in one round trip."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Call the subcommand and return what it answered."""
        words = [args["call"], *args["arguments"]]
        reported = args["document"] or args["on_error"] == "document"
        if self.check_mode and args["check"] == "skip":
            return {"skipped": True, "msg": f"check mode: {args['call']} is not called"}
        if args["check"] == "flag":
            words = self.add_check(*words)
        if not reported:
            self.ERROR_IN_CHECK_MODE = "change" if args["check"] == "flag" else "skip"
        try:
            answer = self._call(words, args)
        except RemoteError as error:
            if args["on_error"] == "document":
                return {"kimi_document": {"ok": False, "detail": error.line}}
            raise
        result = {"kimi_document" if reported else "answer": answer}
        result |= {key: answer[key] for key in ("changed", "changes", "warnings") if key in answer}
        if answer.get("ok") is False and args["on_error"] == "fail":
            return result | build_failure(str(answer["detail"]), answer.get("fix"))
        return result | self._judge(answer.get("findings") or ())

    def _call(self, words: list[str], args: Mapping[str, Any]) -> dict[str, Any]:
        if args["sent"]:
            return dict(call_sent(self, *words, stdin=args["input"], secret=args["secret"]))
        return dict(call(self, *words, stdin=args["input"], secret=args["secret"]))

    def _judge(self, rows: Any) -> dict[str, Any]:  # noqa: ANN401 (a machine's answer)
        """Return the failure or the warnings that findings add to the result."""
        findings = complete_findings(rows)
        blockers = [row for row in findings if row["severity"] == "blocker"]
        if blockers:
            return build_refusal(self.host, blockers)
        warnings = [row for row in findings if row["severity"] == "warning"]
        result: dict[str, Any] = {"msg": format_findings(findings)} if findings else {}
        if warnings:
            result["warnings"] = [f"{row['title']}: {row['observed']}" for row in warnings]
            result["kimi"] = {"findings": warnings}
        return result
