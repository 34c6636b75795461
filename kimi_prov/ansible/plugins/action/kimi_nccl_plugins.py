"""Action `kimi_nccl_plugins`: quarantine NCCL plugins that fail on one machine."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends its own copy of the code: in check mode none is installed."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Move them, and say in `moved` what lay where."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            found = call_sent(self, "nccl-plugins", *(["--check"] if self._task.check_mode else []))
        except RemoteError as error:
            return result | failure(error)
        return result | {"changed": found["changed"], "moved": found["moved"]}
