"""Action `kimi_firewall`: open the port through ufw or firewalld where one of them is active."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call, failure
from kimi_prov.planner.findings import make


class ActionModule(ActionBase):  # type: ignore[misc]
    """Also warns of drops elsewhere, which an accept of ours could not undo."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Bring the rules of the active firewall manager to `plan.firewall`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        wanted = self._task.args["plan"]["firewall"]
        check = bool(self._task.check_mode)
        try:
            done = call(self, "firewall-ensure", *(["--check"] if check else []), stdin=wanted)
        except RemoteError as error:
            if check:
                return result | {"changed": wanted["manager"] != "nftables", "msg": error.line}
            return result | failure(error)
        ports = ", ".join(str(port) for port in [*wanted["ports"], *wanted.get("peer_ports", ())])
        result["warnings"] = [
            f"{found}: what is allowed to reach the port may still be kept out there"
            for found in done["drops_elsewhere"]
        ]
        findings = [
            make(
                "firewall.dropped_elsewhere",
                observed=found,
                required=f"port {ports} accepted for those that the inventory allows",
                fix=f"accept tcp dport {{ {ports} }} in that chain",
            )
            for found in done["drops_elsewhere"]
        ]
        return result | {
            "changed": done["changed"],
            "added": done["added"],
            "removed": done["removed"],
            "kimi": {"findings": findings},
        }
