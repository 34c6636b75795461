"""Action `kimi_update`: run one step of an update of a machine's operating system."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible import restart_consent
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import UpdateLookAnswer

DOCUMENTATION = """
module: kimi_update
short_description: Runs one step of an update of packages
description: Sends its own copy of the code, because the machine may have an older one.
options:
  step:
    type: str
    required: true
    description: A verb of the machine's subcommand C(update), or C(report) for the document.
  request:
    type: dict
    default: {}
    description: The input of the machine's subcommand.
  reboot_ok:
    type: raw
    description: Consent to a restart, for C(look); only the boolean true counts.
  steps:
    type: dict
    default: {}
    description:
      - For C(report), the answers to the steps (C(found), C(drained), C(installed), C(effect)),
        the plan's C(driver), and whether the model was C(verified).
"""


class ActionModule(HostAction):
    """The step `look` refuses a machine that must restart and may not."""

    SKIPPED_IN_CHECK_MODE = "nothing is updated"
    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step."""
        if args["step"] == "report":
            return {"kimi_document": build_document(args["steps"])}
        if args["step"] == "serves":
            return self._ask_other()
        started = time.time()
        answer = call_sent(self, "update", args["step"], stdin=args["request"])
        refusal = {}
        if args["step"] == "look" and answer["restart"]:
            refusal = self.find_refusal(answer, args["reboot_ok"])
        changed = bool(answer.get("changed"))
        return {**refusal, **answer, "changed": changed, "began": started}

    def _ask_other(self) -> dict[str, Any]:
        """Ask another gateway whether it serves, so that clients keep one gateway.

        Raises RemoteError where it does not serve.
        """
        try:
            return dict(call_sent(self, "update", "serves", stdin={}))
        except AnsibleConnectionFailure as error:
            other = self._task.delegate_to
            raise RemoteError(
                f"{other} is not reached: without this gateway nobody would answer clients",
                f"bring {other} back, or give --defer-restart",
            ) from error

    def find_refusal(self, answer: UpdateLookAnswer, consent: object) -> dict[str, Any]:
        """Return the failure of a machine that may not restart; empty where it may."""
        refusal = restart_consent.find_refusal(
            self,
            self.host,
            self.facts,
            ("update_reboot_ok", consent),
            "update it yourself",
        )
        if refusal is None:
            return {}
        reason, fix = refusal
        updates = describe_reasons(answer)
        fix = f"{fix}, or give --defer-restart"
        finding = make_finding(
            "update.reboot",
            observed=f"{reason}; {updates}",
            required="consent to a restart, on a machine other than this one",
            fix=fix,
        )
        message = f"{self.host} has to restart for its updates ({updates}): {reason}"
        return build_failure(message, fix, "blockers", [finding])


def describe_reasons(answer: UpdateLookAnswer) -> str:
    """Return the reasons why a machine has to restart."""
    names = [
        f"{row['name']} {row['candidate']}"
        for row in answer["packages"]
        if row["kind"] in ("kernel", "microcode")
    ]
    return ", ".join([*names, *answer["restart_reasons"]])


def build_document(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host's part of the document, from the answers to the steps."""
    waiting, effect = steps["found"], steps["effect"]
    drained, installed = steps.get("drained") or {}, steps.get("installed") or {}
    driver = steps["driver"]
    kinds = {row["name"]: row["kind"] for row in waiting["packages"]}
    rows = [
        {**row, "kind": kinds.get(row["name"], "other")} for row in installed.get("installed") or ()
    ]
    changed = driver["action"] != "none"
    restarted = bool(waiting["restart"] or (changed and driver["restart"]))
    served = restarted and waiting["serves"] and drained.get("began")
    without = effect["began"] - drained["began"] if served else 0.0
    return {
        "ok": True,
        "detail": _describe(len(rows), changed=changed, restarted=restarted),
        "installed": rows,
        "driver": driver["version"] if changed else None,
        "left": list(waiting["left"]),
        "restarted": restarted,
        "requests_cut": int(drained.get("left") or 0),
        "seconds_without_service": round(without, 1),
        "verified": bool(steps["verified"]),
        "restart_reasons": list(effect["restart_reasons"]),
        "stale_units": list(effect["stale_units"]),
    }


def _describe(count: int, *, changed: bool, restarted: bool) -> str:
    parts = [f"{count} packages installed"] if count else []
    parts += ["driver changed"] if changed else []
    parts += ["restarted"] if restarted else []
    return ", ".join(parts) or "nothing to do"
