"""Action `kimi_program`: install the code that runs on the machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.packaging.zipapp import build_zipapp, zipapp_sha256


class ActionModule(ActionBase):  # type: ignore[misc]
    """Builds it here and leaves the copying to Ansible's own `copy`."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Copy it to `dest`, for everybody to run, unless `installed` is its SHA-256."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.args.get("installed") == zipapp_sha256():
            return result | {"changed": False}
        with tempfile.TemporaryDirectory(prefix="kimi-prov-") as local:
            source = build_zipapp(Path(local) / "kimi-target.pyz")
            task = self._task.copy()
            task.args = {
                "src": str(source),
                "dest": self._task.args["dest"],
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
            copied: dict[str, Any] = copy.run(task_vars=task_vars)
            return result | copied
