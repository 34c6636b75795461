"""Action `kimi_bench`: have a machine measure itself, and judge what it found."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import bench
from kimi_prov.ansible.remote import RemoteError, build_failure, call


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state: started` begins; `state: judged`, when the unit is done, gives the document.

    `load` is a file of the control machine with what is asked and its prompts; what was brought of
    it is removed.
    """

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
                self._start(self._task.args.get("load"))
                return result
            measured = call(self, "bench", "result")
        except RemoteError as error:
            return result | build_failure(error)
        document = bench.document(measured, self._task.args["findings"], task_vars or {})
        result |= {"kimi_document": document}
        if not document["ok"]:
            result |= build_failure(document["detail"], "kimi-prov verify")
        return result

    def _start(self, load: str | None) -> None:
        if not load:
            call(self, "bench", "start")
            return
        folder = self._make_tmp_path()
        try:
            there = self._connection._shell.join_path(folder, "load.json")
            self._transfer_file(load, there)
            answer = call(self, "bench", "start", there)
        finally:
            self._remove_tmp_path(folder, force=True)
        asked = json.loads(Path(load).read_text(encoding="utf-8"))["load"]
        if any(value is not None for value in asked.values()) and answer.get("load") != asked:
            # An older version's code began with a load of its own: end it.
            with contextlib.suppress(RemoteError):
                call(self, "bench", "result")
            raise RemoteError(
                "the kimi-prov on this machine is of another version and does not take the load "
                "that was asked",
                "run `kimi-prov apply` first",
            )
