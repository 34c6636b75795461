"""Action `kimi_package_manager`: wait until apt and dpkg are free, and report the holder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding
from kimi_prov.planner.software import packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.findings import Finding

DOCUMENTATION = """
module: kimi_package_manager
short_description: Waits until apt and dpkg are free
description: Runs before anything changes, so a lock that stays is reported as a blocker.
options:
  timeout_s:
    type: float
    required: true
    description: Seconds to wait.
"""

PHASE = "preflight"
POLL_INTERVAL_S = 2.0


class ActionModule(HostAction):
    """Asks every two seconds."""

    SKIPPED_IN_CHECK_MODE = "not waited"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Ask until no process holds a lock, or the time is over."""
        started = time.monotonic()
        while holder := (answer := call_sent(self, "package-manager")).get("holder"):
            waited_s = time.monotonic() - started
            if waited_s > args["timeout_s"]:
                observed = packages.describe_lock_timeout(holder, waited_s)
                return self._refuse(make_finding("packages.busy", **observed))
            line = f"waiting for apt and dpkg: {packages.describe_holder(holder)}"
            self.report(phase=PHASE, line=line, eta_s=args["timeout_s"] - waited_s)
            time.sleep(POLL_INTERVAL_S)
        if answer.get("unfinished"):
            observed = packages.describe_unfinished(answer["unfinished"])
            return self._refuse(make_finding("packages.unfinished", **observed))
        waited_s = time.monotonic() - started
        return {"waited_s": round(waited_s, 1), "msg": "apt and dpkg are free"}

    def _refuse(self, finding: Finding) -> dict[str, Any]:
        message = f"{self.host}: {finding['title']}: {finding['observed']}"
        return build_failure(message, finding["fix"], "blockers", [finding])
