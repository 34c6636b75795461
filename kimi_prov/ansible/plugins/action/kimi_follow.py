"""Action `kimi_follow`: wait until a unit has done its work, and show its progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import switching
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure, call, wait_reachable
from kimi_prov.ansible.unit_status import build_update, classify, list_warnings, make_findings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import FollowAnswer

DOCUMENTATION = """
module: kimi_follow
short_description: Waits until a unit has done its work
description: The unit works without this task; after a cut connection the task waits and asks again.
options:
  unit:
    type: str
    required: true
    description: The unit.
  progress:
    type: str
    required: true
    description: The file in which the unit writes its progress.
  phase:
    type: str
    required: true
    description: The name of the work where progress is shown.
  timeout_s:
    type: float
    required: true
    description: Seconds until the task gives up; the unit goes on.
  unreachable_s:
    type: float
    default: 300
    description: Seconds for which the machine may be unreachable.
"""

POLL_INTERVAL_S = 1.0


class ActionModule(HostAction):
    """Asks once a second."""

    SKIPPED_IN_CHECK_MODE = "not waited"
    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Ask until the unit has ended, has failed, or the time is over."""
        unit, started = args["unit"], time.monotonic()
        words = ("follow", unit, "--progress", args["progress"])
        while True:
            answer: FollowAnswer = wait_reachable(
                self, args["unreachable_s"], lambda: call(self, *words)
            )
            verdict = classify(unit, answer)
            if verdict.state in ("done", "failed"):
                # The machine may have restarted while it was unreachable.
                switching.check(self, self.variables)
            waited_s = round(time.monotonic() - started, 1)
            if verdict.state == "done":
                warnings = list_warnings(answer)
                result: dict[str, Any] = {"waited_s": waited_s, "msg": verdict.message}
                if warnings:
                    result["warnings"] = warnings
                    result["kimi"] = {"findings": make_findings(warnings)}
                return result
            if verdict.state == "failed":
                fix = "remove the cause and run this again: what is done is kept "
                fix = verdict.fix or f"{fix}(log: journalctl -u {unit})"
                failure = build_failure(verdict.message, fix, "unit")
                return {**failure, "journal": answer.get("journal") or []}
            if waited_s > args["timeout_s"]:
                return build_failure(
                    f"{unit} is still at work after {waited_s:.0f} s",
                    "let it go on by itself and run this again later",
                )
            self.report(**build_update(args["phase"], answer))
            time.sleep(POLL_INTERVAL_S)
