"""Action `kimi_web`: let the planned page run, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import web_admin
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.contract import unit_names
from kimi_prov.errors import UserError


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends the first administrator over standard input; nothing secret is in the result."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start, change or remove the page; where it does not answer the one before runs again."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        plan = given["plan"]
        file = plan["control"].get("web_admin_file")
        try:
            admin = web_admin.load(Path(file)) if file and plan["web"] else None
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        wanted = {
            "web": plan["web"],
            "unit": given["unit"],
            "admin": admin,
            "timeout_s": int(given["start_timeout_s"]),
        }
        check = ["--check"] if self._task.check_mode else []
        try:
            done = call(self, "web-ensure", *check, stdin=wanted, secret=True)
        except RemoteError as error:
            if check:
                return result | {"changed": True, "msg": f"would run: {error.line}"}
            return result | build_failure(error, f"see `systemctl status {unit_names.WEB}` there")
        return result | {key: done[key] for key in ("changed", "did", "changes")}
