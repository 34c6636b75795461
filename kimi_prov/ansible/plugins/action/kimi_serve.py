"""Action `kimi_serve`: let exactly the planned engine instances run, each as it is configured."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure, target
from kimi_prov.contract import unit_names


class ActionModule(ActionBase):  # type: ignore[misc]
    """Judges by what runs, so that an apply that was cut short is made good by the next."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start, restart and remove; `stamps` maps an instance's index to its configuration's."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        check = bool(self._task.check_mode)
        stamps = {str(index): stamp for index, stamp in self._task.args["stamps"].items()}
        try:
            done = target(self, "serve-ensure", *(["--check"] if check else []), stdin=stamps)
        except RemoteError as error:
            if check:
                return result | {"changed": True, "msg": error.line}
            return result | failure(error, f"see `systemctl status '{unit_names.ALL_SERVE}'` there")
        return result | done
