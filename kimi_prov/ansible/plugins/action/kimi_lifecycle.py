"""Action `kimi_lifecycle`: one step of stopping, starting or restarting what a machine serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible import apply_lock, restart_consent
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract.durations import format_duration
from kimi_prov.planner.findings import make_finding
from kimi_prov.runner import progress

if TYPE_CHECKING:
    from collections.abc import Mapping

_ASKED = ("stop", "start", "restart")


class ActionModule(ActionBase):  # type: ignore[misc]
    """`step`: stop, start, restart, started or outcome, as `rest` on the machine has them; consent.

    `consent` refuses a machine that would switch itself off where it is its own control machine.

    `outcome` and `started` give the host's document. The code is sent; what runs on as a unit is
    the machine's own.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the step. A host of a group is refused where others of the group are left out."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        variables = task_vars or {}
        step = str(self._task.args["step"])
        if step == "consent":
            return result | self._consent(variables)
        if self._task.check_mode:
            return result | {"skipped": True, "msg": "check mode: nothing is stopped or started"}
        try:
            if step in _ASKED:
                told = call_sent(self, "rest", step, stdin=self._request(variables))
            else:
                told = call_sent(self, "rest", step)
        except AnsibleConnectionFailure as error:
            return result | build_unreachable(error)
        except RemoteError as error:
            return result | build_failure(error)
        host = str(variables.get("inventory_hostname", ""))
        if told.get("expected"):
            line = _expected(told["expected"])
            progress.report(Display(), host, {"phase": step, "line": line})
        changed = bool(told.get("started")) or (step == "start" and told["was"] != "serving")
        document = self._document(step, told)
        return result | told | {"changed": changed} | document

    def _consent(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        if self._task.args["plan"]["rest"]["idle"]["poweroff_self"]:
            return {}
        host = str(variables.get("inventory_hostname", "the machine"))
        consented = ("kimi_idle_poweroff_self", True)
        refused = restart_consent.refusal(
            self, host, variables.get("kimi_facts") or {}, consented, ""
        )
        if refused is None:
            return {}
        fix = f"set kimi_idle_poweroff_self: true for {host}, or kimi_idle_action: stop"
        why = "kimi_idle_action is poweroff, and this is the machine that kimi-prov runs on"
        finding = make_finding(
            "rest.own_machine", observed=why, required="consent to that", fix=fix
        )
        return build_failure(f"{host}: {why}", fix, "blockers", [finding])

    def _request(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        we = apply_lock.holder()
        return {
            "by": {"user": we["user"], "control_host": we["control_host"]},
            "drain_s": float(self._task.args.get("drain_s") or 0),
            "part": str(self._task.args.get("part") or "serving"),
            # Without those that have failed: hosts that serve together go on together.
            "hosts": [str(name) for name in variables.get("ansible_play_batch") or ()],
        }

    def _document(self, step: str, told: Mapping[str, Any]) -> dict[str, Any]:
        if step == "outcome":
            known = {"requests_cut": told.get("cut"), "seconds": told.get("seconds")}
            return {"kimi_document": {"ok": True, "detail": _ended(told), **known}}
        if step == "started":
            start = told.get("start") or {}
            was = (self._task.args.get("began") or {}).get("was")
            known = {"was": was, "seconds": start.get("seconds"), "held": start.get("held")}
            return {"kimi_document": {"ok": True, "detail": self._answers(told), **known}}
        return {}

    def _answers(self, told: Mapping[str, Any]) -> str:
        began, start = self._task.args.get("began") or {}, told.get("start")
        if began.get("was") == "serving":
            return "it serves already"
        took = f" after {format_duration(start['seconds'])}" if start else ""
        place = f" (the weights were in the {start['held']})" if start and _known(start) else ""
        return f"it serves: the model answered{took}{place}"


def _known(start: Mapping[str, Any]) -> bool:
    return str(start["held"]) != "unknown"


def _expected(found: Mapping[str, Any]) -> str:
    if found["seconds"] is None:
        return str(found["basis"])
    return f"it will take about {format_duration(float(found['seconds']))}: {found['basis']}"


def _ended(told: Mapping[str, Any]) -> str:
    cut = told.get("cut") or 0
    ended = f"{cut} request{'s' if cut != 1 else ''} cut" if cut else "no request was cut"
    took = f" in {format_duration(told['seconds'])}" if told.get("seconds") is not None else ""
    word = "stopped" if told.get("mark") else "restarted"
    stays = "; weights, keys, page, history and certificate stay" if told.get("mark") else ""
    return f"{word}{took}, {ended}{stays}"
