"""Action plugins that stand for machines: what `logs` reports, and what `diagnose` gathers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS = """
import json
import time

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.runner import progress

TOLD = json.loads({told!r})


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = task_vars["inventory_hostname"]
        told = TOLD[host]
        time.sleep(told.get("after_s", 0))
        progress.report(Display(), host, {{"phase": "logs", "entries": told["entries"]}})
        while self._task.args["follow"]:
            time.sleep(0.1)
        return {{"changed": False, "asked": dict(self._task.args), **told.get("result", {{}})}}
"""
DIAGNOSE = """
import json
from pathlib import Path
from urllib.parse import quote

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.private_output import append_line

TOLD = json.loads({told!r})


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = task_vars["inventory_hostname"]
        told = TOLD[host]
        if "failed" not in told:
            file = Path(self._task.args["folder"]) / f"host-{{quote(host, safe='')}}.json"
            append_line(file, told)
            return {{"changed": False}}
        return told
"""


def logs(told: Mapping[str, Any]) -> str:
    """Give the source of a `kimi_logs` that reports these entries for each host."""
    return LOGS.format(told=json.dumps(told))


def diagnose(told: Mapping[str, Any]) -> str:
    """Give the source of a `kimi_diagnose` that hands this over for each host."""
    return DIAGNOSE.format(told=json.dumps(told))
