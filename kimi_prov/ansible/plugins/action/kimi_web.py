"""Action `kimi_web`: converge the web UI to the plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import web_admin
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call
from kimi_prov.contract import unit_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import WebUiAnswer

DOCUMENTATION = """
module: kimi_web
short_description: Starts, changes or removes the web UI
description: If the new web UI does not answer, the former one runs again.
options:
  plan:
    type: dict
    required: true
    description: The plan.
  unit:
    type: str
    required: true
    description: The text of its unit; empty without a web UI.
  start_timeout_s:
    type: int
    required: true
    description: As the role's option.
"""


class ActionModule(HostAction):
    """Sends the first administrator over standard input; nothing secret is in the result."""

    ERROR_IN_CHECK_MODE = "change"
    FIX = f"see `systemctl status {unit_names.WEB}` there"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Converge, and report what was done."""
        plan = args["plan"]
        file = plan["control"].get("web_admin_file")
        request = {
            "web": plan["web"],
            "unit": args["unit"],
            "admin": web_admin.load_account(Path(file)) if file and plan["web"] else None,
            "timeout_s": args["start_timeout_s"],
        }
        answer: WebUiAnswer = call(self, *self.add_check("web-ensure"), stdin=request, secret=True)
        return {key: answer[key] for key in ("changed", "did", "changes")}
