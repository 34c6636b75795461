"""Action `kimi_diagnose`: gather what a bug report needs from the machine into a local file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kimi_prov.ansible.control_files import append_line
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.diagnose import DiagnoseAnswer

DOCUMENTATION = """
module: kimi_diagnose
short_description: Gathers what a bug report needs into a file of the control machine
description: The run's log keeps none of it; returns C(file), and its length in C(characters).
options:
  folder:
    type: str
    required: true
    description: Folder of the file, which only the caller reads.
"""


class ActionModule(HostAction):
    """Only the caller can read the file."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Write FOLDER/host-NAME.json."""
        file = Path(args["folder"]) / f"host-{quote(self.host, safe='')}.json"
        gathered: DiagnoseAnswer = call(self, "diagnose", secret=True)
        append_line(file, dict(gathered))
        return {"file": str(file), "characters": len(json.dumps(gathered))}
