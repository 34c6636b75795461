"""Action `kimi_status`: what runs on the machine now."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import suite
from kimi_prov.ansible.remote import RemoteError, target


class ActionModule(ActionBase):  # type: ignore[misc]
    """A machine that is not provisioned is a status too, no failure."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read the status of the machine into `kimi_document`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            document = target(self, "status")
        except RemoteError as error:
            document = {"ok": False, "provisioned": False, "detail": error.line}
        said = document.pop("stand_in", None)
        made = {"random_weights": False, "trained_on": None}
        plan = {
            "model": {key: document.pop(key, default) for key, default in made.items()},
            "stand_in": {"said": said} if said else None,
        }
        document["stand_ins"] = suite.stand_ins(plan, task_vars or {})
        return result | {"changed": False, "kimi_document": document}
