"""Action `kimi_program`: install the code that runs on the machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.packaging.zipapp import build_zipapp, compute_zipapp_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_program
short_description: Installs our program
description: Builds it here and leaves the copying to Ansible's own C(copy).
options:
  dest:
    type: str
    required: true
    description: The path of the program, which every user may run.
  installed:
    type: str
    description: The SHA-256 of the installed program.
"""


class ActionModule(HostAction):
    """Calls nothing on a machine that has this version."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the program to `dest` unless `installed` is its SHA-256."""
        if args["installed"] == compute_zipapp_sha256():
            return {}
        with tempfile.TemporaryDirectory(prefix="kimi-prov-") as local:
            source = build_zipapp(Path(local) / "kimi-target.pyz")
            task = self._task.copy()
            task.args = {
                "src": str(source),
                "dest": args["dest"],
                "owner": "root",
                "group": "root",
                "mode": "0755",
            }
            copy = self._shared_loader_obj.action_loader.get(
                "ansible.builtin.copy",
                task=task,
                connection=self._connection,
                play_context=self._play_context,
                loader=self._loader,
                templar=self._templar,
                shared_loader_obj=self._shared_loader_obj,
            )
            return dict(copy.run(task_vars=self.variables))
