"""Action `kimi_follow`: wait until a unit has done its work, showing how far it is."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible import switching
from kimi_prov.ansible.remote import (
    RemoteError,
    build_failure,
    build_unreachable,
    call,
    wait_reachable,
)
from kimi_prov.ansible.unit_status import judge, left, report_of, warned
from kimi_prov.runner import progress

INTERVAL_S = 1.0


class ActionModule(ActionBase):  # type: ignore[misc]
    """The work goes on without us: a cut connection is only waited out."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask once a second until the unit is done, has failed, or `timeout_s` is over."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "check mode: not waited"}
        unit, phase = str(self._task.args["unit"]), str(self._task.args["phase"])
        host = (task_vars or {}).get("inventory_hostname", "")
        started = time.monotonic()
        limit_s = float(self._task.args["timeout_s"])
        while True:
            try:
                answer = self._ask(unit)
                verdict = judge(unit, answer)
                if verdict.state in ("done", "failed"):
                    # The machine may have been away, and have started again meanwhile.
                    switching.check(self, task_vars or {})
            except AnsibleConnectionFailure as error:
                return result | build_unreachable(error)
            except RemoteError as error:
                return result | build_failure(error)
            waited = round(time.monotonic() - started, 1)
            if verdict.state == "done":
                told = warned(answer)
                return (
                    result
                    | {"changed": False, "waited_s": waited, "msg": verdict.message}
                    | ({"warnings": told, "kimi": {"findings": left(told)}} if told else {})
                )
            if verdict.state == "failed":
                return (
                    result
                    | build_failure(
                        verdict.message,
                        verdict.fix
                        or "remove the cause and run this again: what is done is kept "
                        f"(log: journalctl -u {unit})",
                        "unit",
                    )
                    | {"journal": answer.get("journal") or []}
                )
            if waited > limit_s:
                return result | build_failure(
                    f"{unit} is still at work after {waited:.0f} s",
                    "let it go on by itself and run this again later",
                )
            progress.report(Display(), host, report_of(phase, answer))
            time.sleep(INTERVAL_S)

    def _ask(self, unit: str) -> dict[str, Any]:
        """Return the unit's state, waiting out a machine that is away (a cut link, a reboot)."""
        patience_s = float(self._task.args.get("unreachable_s", 300))
        words = ("follow", unit, "--progress", self._task.args["progress"])
        return wait_reachable(self, patience_s, lambda: call(self, *words))
