"""Action `kimi_serve`: write the engine's units, and run exactly the planned instances."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import switching
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.send import call_sent
from kimi_prov.ansible.serve_units import Options, render
from kimi_prov.contract import unit_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ServeAnswer, WrittenFile

DOCUMENTATION = """
module: kimi_serve
short_description: Converges the engine's units
description:
  - Compares with what runs, so that an apply after an interrupted one completes its work.
  - The code is sent, because in check mode and with C(--tags) the machine may have an older one.
options:
  plan:
    type: dict
    required: true
    description: The plan.
  start_timeout_s:
    type: int
    required: true
    description: As the role's option.
  stop_timeout_s:
    type: int
    required: true
    description: As the role's option.
  restart_delay_s:
    type: int
    required: true
    description: As the role's option.
  start_limit_burst:
    type: int
    required: true
    description: As the role's option.
"""


class ActionModule(HostAction):
    """Reports the reason of each restart."""

    FAILS_UNREACHABLE = True
    FIX = f"see `systemctl status '{unit_names.ALL_SERVE}'` there"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Write, start, restart and remove units as planned."""
        options = Options(**{field.name: args[field.name] for field in fields(Options)})
        if not self.check_mode:
            switching.check(self, self.variables)
        units = asdict(render(args["plan"], options))
        answer: ServeAnswer = call_sent(self, *self.add_check("serve-ensure"), stdin=units)
        written = answer["written"]
        files = [row["path"] for row in written]
        result = {**answer, "written": files, "changes": _list_changes(answer, files)}
        if self._task.diff:
            result["diff"] = [_build_diff(row) for row in written]
        if self.check_mode and result["changes"]:
            result["_ansible_verbose_always"] = True  # for runs of plain Ansible
        return result


def _list_changes(answer: ServeAnswer, files: list[str]) -> list[str]:
    """List the changes, with the reason of each restart."""
    reasons = answer["reasons"]
    return [
        *[f"{path} is made" for path in answer["made"]],
        *[f"{path} changes" for path in files],
        *[f"{unit} starts" for unit in answer["started"]],
        *[f"{unit} restarts: {'; '.join(reasons[unit])}" for unit in answer["restarted"]],
        *[f"{unit} is removed: it is no longer planned" for unit in answer["removed"]],
    ]


def _build_diff(row: WrittenFile) -> dict[str, str]:
    return {
        "before": row["before"],
        "after": row["after"],
        "before_header": row["path"],
        "after_header": row["path"],
    }
