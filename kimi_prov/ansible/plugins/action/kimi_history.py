"""Action `kimi_history`: what was applied to the machine, and what could be put back."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """A machine without a history has one that is empty."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read the history of the machine into `kimi_document`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            document = call_sent(self, "history")
        except RemoteError as error:
            document = {"ok": False, "detail": error.line}
        return result | {"changed": False, "kimi_document": document}
