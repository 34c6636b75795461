"""Action `kimi_package_manager`: wait until apt and dpkg are free, and say who holds them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding
from kimi_prov.planner.software import packages
from kimi_prov.runner import progress

if TYPE_CHECKING:
    from kimi_prov.planner.findings import Finding

INTERVAL_S = 2.0
PHASE = "preflight"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Nothing was changed yet: who waits in vain is refused as for any other blocker."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask every two seconds until nobody holds a lock, or `timeout_s` is over."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"skipped": True, "msg": "check mode: not waited"}
        host = str((task_vars or {}).get("inventory_hostname", "the machine"))
        limit_s = float(self._task.args["timeout_s"])
        started = time.monotonic()
        while True:
            try:
                answer = call_sent(self, "package-manager")
            except RemoteError as error:
                return result | build_failure(error)
            waited_s = time.monotonic() - started
            found = answer.get("holder")
            if not found:
                break
            if waited_s > limit_s:
                late = make_finding(
                    "packages.busy", **packages.describe_lock_timeout(found, waited_s)
                )
                return result | _refused(host, late)
            line = f"waiting for apt and dpkg: {packages.describe_holder(found)}"
            eta_s = limit_s - waited_s
            progress.report(Display(), host, {"phase": PHASE, "line": line, "eta_s": eta_s})
            time.sleep(INTERVAL_S)
        if answer.get("unfinished"):
            half = make_finding(
                "packages.unfinished", **packages.describe_unfinished(answer["unfinished"])
            )
            return result | _refused(host, half)
        return result | {"waited_s": round(waited_s, 1), "msg": "apt and dpkg are free"}


def _refused(host: str, found: Finding) -> dict[str, Any]:
    message = f"{host}: {found['title']}: {found['observed']}"
    return build_failure(message, found["fix"], "blockers", [found])
