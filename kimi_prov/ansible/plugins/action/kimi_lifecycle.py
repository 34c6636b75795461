"""Action `kimi_lifecycle`: run one step of a stop, start or restart of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import apply_lock, restart_consent
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract.durations import format_duration
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ExpectedStart, LifecycleAnswer, MeasuredStart
    from kimi_prov.contract.documents.plan import MachinePlan

DOCUMENTATION = """
module: kimi_lifecycle
short_description: Runs one step of a stop, a start or a restart
description: The code is sent along; units run the code that is installed on the machine.
options:
  step:
    type: str
    choices: [consent, stop, start, restart, started, outcome]
    required: true
    description:
      - C(consent) refuses a machine that would switch itself off and is its own control machine.
      - C(stop), C(start) and C(restart) begin; all hosts of a group must be in the run.
      - C(started) and C(outcome) return the host's document.
  plan:
    type: dict
    description: The plan, for C(consent).
  drain_s:
    type: float
    default: 0
    description: Seconds for answers that are in progress.
  part:
    type: str
    default: serving
    description: The part of a group's hosts that stops.
  began:
    type: dict
    default: {}
    description: What C(start) returned, for C(started).
"""

_REQUESTS = ("stop", "start", "restart")


class ActionModule(HostAction):
    """A lost host fails the task, so that other hosts of its group do not stay locked."""

    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step."""
        step = args["step"]
        if step == "consent":
            return self._check_consent(args["plan"])
        if self.check_mode:
            return {"skipped": True, "msg": "check mode: nothing is stopped or started"}
        request = self._build_request(args) if step in _REQUESTS else None
        answer: LifecycleAnswer = call_sent(self, "rest", step, stdin=request)
        expected = answer.get("expected")
        if expected:
            self.report(phase=step, line=_describe_expected(expected))
        changed = bool(answer.get("started")) or (step == "start" and answer["was"] != "serving")
        return {**answer, "changed": changed, **build_document(step, answer, args["began"])}

    def _check_consent(self, plan: MachinePlan) -> dict[str, Any]:
        idle = plan["rest"]["idle"]
        if idle is None or idle["poweroff_self"]:
            return {}
        consent = ("kimi_idle_poweroff_self", True)
        if restart_consent.find_refusal(self, self.host, self.facts, consent, "") is None:
            return {}
        fix = f"set kimi_idle_poweroff_self: true for {self.host}, or kimi_idle_action: stop"
        reason = "kimi_idle_action is poweroff, and this is the machine that kimi-prov runs on"
        finding = make_finding(
            "rest.own_machine", observed=reason, required="consent to that", fix=fix
        )
        return build_failure(f"{self.host}: {reason}", fix, "blockers", [finding])

    def _build_request(self, args: Mapping[str, Any]) -> dict[str, Any]:
        holder = apply_lock.describe_holder()
        return {
            "by": {key: holder[key] for key in ("user", "control_host")},
            "drain_s": args["drain_s"],
            "part": args["part"],
            # Hosts that failed are left out: hosts that serve together go on together.
            "hosts": [str(name) for name in self.variables.get("ansible_play_batch") or ()],
        }


def build_document(step: str, answer: LifecycleAnswer, began: Mapping[str, Any]) -> dict[str, Any]:
    """Return the host's document after the last step; `began`: the answer to the first step."""
    if step == "outcome":
        numbers = {"requests_cut": answer.get("cut"), "seconds": answer.get("seconds")}
        return {"kimi_document": {"ok": True, "detail": _describe_end(answer), **numbers}}
    if step == "started":
        start = answer.get("start")
        document = {
            "ok": True,
            "detail": _describe_start(start, began),
            "was": began.get("was"),
            "seconds": start["seconds"] if start else None,
            "held": start["held"] if start else None,
        }
        return {"kimi_document": document}
    return {}


def _describe_start(start: MeasuredStart | None, began: Mapping[str, Any]) -> str:
    if began.get("was") == "serving":
        return "it serves already"
    if not start:
        return "it serves: the model answered"
    duration, held = format_duration(start["seconds"]), str(start["held"])
    weights = "" if held == "unknown" else f" (the weights were in the {held})"
    return f"it serves: the model answered after {duration}{weights}"


def _describe_expected(expected: ExpectedStart) -> str:
    if expected["seconds"] is None:
        return str(expected["basis"])
    duration = format_duration(float(expected["seconds"]))
    return f"it will take about {duration}: {expected['basis']}"


def _describe_end(answer: LifecycleAnswer) -> str:
    cut = answer.get("cut") or 0
    requests = f"{cut} request{'s' if cut != 1 else ''} cut" if cut else "no request was cut"
    seconds = answer.get("seconds")
    duration = "" if seconds is None else f" in {format_duration(seconds)}"
    if answer.get("mark"):
        kept = "weights, keys, web UI, history and certificate stay"
        return f"stopped{duration}, {requests}; {kept}"
    return f"restarted{duration}, {requests}"
