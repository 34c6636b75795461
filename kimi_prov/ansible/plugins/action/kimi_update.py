"""Action `kimi_update`: one step of bringing a machine's operating system up to date."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import restart_consent
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping

# What each step on the machine is told of the task's arguments.
_TOLD = (
    "words", "timeout_s", "hold_s", "restarts", "restarted", "defer_restart", "driver_follows",
    "driver_changed",
)  # fmt: skip


class ActionModule(ActionBase):  # type: ignore[misc]
    """`step`: a verb of the command `update`, or report, which gives the document.

    Sends its own copy of the code: the machine may have an older one.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the step. A machine that would have to restart and may not is refused by `look`."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        given = self._task.args
        if self._task.check_mode:
            return result | {"skipped": True, "msg": "check mode: nothing is updated"}
        if given["step"] == "report":
            return result | {"kimi_document": document(given)}
        question = {name: given[name] for name in _TOLD if name in given}
        began = time.time()
        try:
            if given["step"] == "serves":
                return result | self._serves()
            told = call_sent(self, "update", given["step"], stdin=question)
        except AnsibleConnectionFailure as error:
            return result | build_unreachable(error)
        except RemoteError as error:
            return result | build_failure(error)
        if given["step"] == "look" and told["restart"]:
            result |= self._refused(task_vars or {}, told)
        return result | told | {"changed": bool(told.get("changed")), "began": began}

    def _serves(self) -> dict[str, Any]:
        """Ask another gateway whether it serves: who waits for its turn is not the one that fails.

        Raises RemoteError where it does not.
        """
        try:
            return call_sent(self, "update", "serves", stdin={})
        except AnsibleConnectionFailure as error:
            other = self._task.delegate_to
            raise RemoteError(
                f"{other} is not reached: without this gateway nobody would answer clients",
                f"bring {other} back, or give --defer-restart",
            ) from error

    def _refused(self, variables: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
        host = str(variables.get("inventory_hostname", "the machine"))
        refused = restart_consent.refusal(
            self,
            host,
            variables.get("kimi_facts") or {},
            ("update_reboot_ok", self._task.args.get("reboot_ok")),
            "update it yourself",
        )
        if refused is None:
            return {}
        why, fix = refused
        for_what = reasons(told)
        finding = make_finding(
            "update.reboot",
            observed=f"{why}; {for_what}",
            required="consent to a restart, on a machine other than this one",
            fix=f"{fix}, or give --defer-restart",
        )
        message = f"{host} has to restart for its updates ({for_what}): {why}"
        return build_failure(message, f"{fix}, or give --defer-restart", "blockers", [finding])


def reasons(told: Mapping[str, Any]) -> str:
    """Say for what a machine has to restart."""
    names = [
        f"{row['name']} {row['candidate']}"
        for row in told["packages"]
        if row["kind"] in ("kernel", "microcode")
    ]
    return ", ".join([*names, *told["restart_reasons"]])


def document(given: Mapping[str, Any]) -> dict[str, Any]:
    """Give a host's part of the document, from what the steps told."""
    found, effect = given["found"], given["effect"]
    drained, installed = given.get("drained") or {}, given.get("installed") or {}
    driver = given["driver"]
    kinds = {row["name"]: row["kind"] for row in found["packages"]}
    rows = [
        {**row, "kind": kinds.get(row["name"], "other")} for row in installed.get("installed") or ()
    ]
    changed = driver["action"] != "none"
    restarted = bool(found["restart"] or (changed and driver["restart"]))
    served = restarted and found["serves"] and drained.get("began")
    without = effect["began"] - drained["began"] if served else 0.0
    return {
        "ok": True,
        "detail": _detail(len(rows), changed=changed, restarted=restarted),
        "installed": rows,
        "driver": driver["version"] if changed else None,
        "left": list(found["left"]),
        "restarted": restarted,
        "requests_cut": int(drained.get("left") or 0),
        "seconds_without_service": round(without, 1),
        "verified": bool(given["verified"]),
        "restart_reasons": list(effect["restart_reasons"]),
        "stale_units": list(effect["stale_units"]),
    }


def _detail(count: int, *, changed: bool, restarted: bool) -> str:
    parts = [f"{count} packages installed"] if count else []
    parts += ["driver changed"] if changed else []
    parts += ["restarted"] if restarted else []
    return ", ".join(parts) or "nothing to do"
