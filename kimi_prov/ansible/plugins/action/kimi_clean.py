"""Action `kimi_clean`: remove what no version needs that can be put back, or say what that is."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """`remove`: only these, as an earlier call listed them; none in check mode."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Put what was found, and whether it was removed, into `kimi_document`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        remove = bool(self._task.args.get("remove")) and not self._task.check_mode
        try:
            done = call_sent(self, "clean", *(["--remove"] if remove else []))
        except RemoteError as error:
            return result | failure(error)
        changed = bool(done["removed"] and done["items"])
        return result | {"changed": changed, "kimi_document": done}
