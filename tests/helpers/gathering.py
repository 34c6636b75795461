"""Action plugins that stand for machines: what `logs` reports, and what `diagnose` gathers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kimi_prov.ansible.control_files import append_line
from kimi_prov.runner.arguments import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from command_line import Asked, Result

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
        progress.report_progress(Display(), host, {{"phase": "logs", "entries": told["entries"]}})
        while self._task.args["follow"]:
            time.sleep(0.1)
        return {{"changed": False, "asked": dict(self._task.args), **told.get("result", {{}})}}
"""
DIAGNOSE = """
import json
from pathlib import Path
from urllib.parse import quote

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.control_files import append_line

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


def report_logs(told: Mapping[str, Any]) -> Callable[[Asked], Result]:
    """Make what `kimi_logs` does where no Ansible runs: it reports these entries for each host."""

    def answer(asked: Asked) -> Result:
        of_host = told[asked.host]
        update = {"host": asked.host, "phase": "logs", "entries": of_host["entries"]}
        with Path(asked.environment[PROGRESS]).open("a") as stream:
            stream.write(json.dumps(update) + "\n")
        return {"changed": False, **of_host.get("result", {})}

    return answer


def hand_over(told: Mapping[str, Any]) -> Callable[[Asked], Result]:
    """Make what `kimi_diagnose` does where no Ansible runs: it hands this over for each host."""

    def answer(asked: Asked) -> Result:
        of_host = dict(told[asked.host])
        if "failed" in of_host:
            return of_host
        folder = Path(asked.variables["diagnose_folder"])
        append_line(folder / f"host-{quote(asked.host, safe='')}.json", of_host)
        return {"changed": False}

    return answer
