"""Action `kimi_drift`: what on the machine is not as it was applied."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import drift, suite
from kimi_prov.ansible import gateway_hosts
from kimi_prov.ansible.remote import RemoteError
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends its own copy of the code: the installed one is among what may have been changed."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Look, and compare the plan that was applied with `plan`; drift is no failure here."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables, args = task_vars or {}, self._task.args
        try:
            found = call_sent(self, "drift", *(["--weights"] if args.get("weights") else []))
        except RemoteError as error:
            document = drift.unreached(error.line)
        else:
            plan = found.get("plan") or {}
            stand_ins = suite.stand_ins(plan, variables)
            planned = args.get("plan") or None
            why = args.get("unplanned") or None
            groups = variables.get("groups") or {}
            hosts = [*(groups.get("kimi") or ()), *(groups.get(gateway_hosts.GROUP) or ())]
            limit = drift.limits(variables["inventory_hostname"], hosts, plan.get("group"))
            document = drift.document(found, planned, why, args.get("inventory"), limit)
            document["stand_ins"] = stand_ins
        return result | {"changed": False, "kimi_document": document}
