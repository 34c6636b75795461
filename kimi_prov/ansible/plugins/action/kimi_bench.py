"""Action `kimi_bench`: let a machine measure itself, and judge the result."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import bench
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure, call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import BenchAnswer

DOCUMENTATION = """
module: kimi_bench
short_description: Starts a measurement, or judges it when its unit has ended
options:
  state:
    type: str
    choices: [started, judged]
    required: true
    description: C(judged) gives the host's document.
  load:
    type: str
    default: ''
    description: A file of the control machine with the requested load and its prompts.
  findings:
    type: list
    elements: dict
    default: []
    description: The findings of the plan.
"""


class ActionModule(HostAction):
    """The load's file is on the machine only while the measurement starts."""

    SKIPPED_IN_CHECK_MODE = "nothing is measured"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Start, or read and judge."""
        if args["state"] == "started":
            self._start(args["load"])
            return {}
        measured: BenchAnswer = call(self, "bench", "result")
        document = bench.make_document(measured, args["findings"], self.variables)
        result = {"kimi_document": document}
        if not document["ok"]:
            result |= build_failure(document["detail"], "kimi-prov verify")
        return result

    def _start(self, load: str) -> None:
        if not load:
            call(self, "bench", "start")
            return
        folder = self._make_tmp_path()
        try:
            remote_file = self._connection._shell.join_path(folder, "load.json")
            self._transfer_file(load, remote_file)
            answer = call(self, "bench", "start", remote_file)
        finally:
            self._remove_tmp_path(folder, force=True)
        request = json.loads(Path(load).read_text(encoding="utf-8"))["load"]
        if any(value is not None for value in request.values()) and answer.get("load") != request:
            # The machine's older code has started its own default load: end it.
            with contextlib.suppress(RemoteError):
                call(self, "bench", "result")
            raise RemoteError(
                "the kimi-prov on this machine is of another version and does not take the load "
                "that was asked",
                "run `kimi-prov apply` first",
            )
