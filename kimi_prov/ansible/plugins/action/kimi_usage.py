"""Action `kimi_usage`: what each key used on the machine."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError
from kimi_prov.ansible.send import call_sent
from kimi_prov.on_host.usage.report import FIRST, LAST


class ActionModule(ActionBase):  # type: ignore[misc]
    """A machine that has counted nothing yet has used nothing."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was counted into `kimi_document`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        since = str(self._task.args.get("first") or FIRST)
        until = str(self._task.args.get("last") or LAST)
        try:
            document = call_sent(self, "usage", since, until)
        except RemoteError as error:
            document = {"ok": False, "detail": error.line, "rows": [], "uncounted": []}
        return result | {"changed": False, "kimi_document": document}
