"""Action `kimi_bench`: have a machine measure itself, and judge what it found."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import bench
from kimi_prov.ansible.remote import RemoteError, failure, target


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state: started` begins; `state: judged`, when the unit is done, gives the document."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start, or read and judge. In check mode nothing is measured."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"msg": "check mode: nothing is measured"}
        try:
            if self._task.args["state"] == "started":
                target(self, "bench", "start")
                return result
            measured = target(self, "bench", "result")
        except RemoteError as error:
            return result | failure(error)
        document = bench.document(measured, self._task.args["findings"], task_vars or {})
        result |= {"kimi_document": document}
        if not document["ok"]:
            result |= failure(document["detail"], "kimi-prov verify")
        return result
