"""Action `kimi_preflight`: stop before anything changes where the plan has blockers."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.group_hosts import refused_peers
from kimi_prov.ansible.remote import build_failure
from kimi_prov.planner.plan import find_refusals
from kimi_prov.show.text import terminal


class ActionModule(ActionBase):  # type: ignore[misc]
    """All blockers come in one message: fixing them one run at a time wastes the reader's day."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Fail with the blockers of `plan`, or pass with its warnings in `msg`."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        plan = self._task.args["plan"]
        found = find_refusals(plan)
        variables = task_vars or {}
        host = str(variables.get("inventory_hostname", "the machine"))
        if found:
            message = f"{host} does not meet what the plan requires:\n{terminal.findings(found)}"
            return result | build_failure(message, code="blockers", findings=found)
        if plan["group"] is not None:
            missing = refused_peers(plan["group"], host, variables["hostvars"])
            if missing:
                message = f"{host} waits for its group: {'; '.join(missing)}"
                return result | build_failure(message, "mend that host first", code="blockers")
        warnings = [row for row in plan["findings"] if row["severity"] == "warning"]
        return result | {
            "msg": terminal.findings(warnings) if warnings else "nothing stands in the way"
        }
