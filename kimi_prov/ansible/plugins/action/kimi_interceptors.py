"""Action `kimi_interceptors`: set aside what intercepts NCCL."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import run_sent


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
            told = run_sent(self, "interceptors", *(["--check"] if self._task.check_mode else []))
        except RemoteError as error:
            return result | failure(str(error))
        if "error" in told:
            return result | failure(str(told["error"]), "run ldconfig -v and look who names it")
        return result | {"changed": told["changed"], "moved": told["moved"]}
