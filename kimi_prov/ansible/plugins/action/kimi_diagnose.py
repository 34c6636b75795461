"""Action `kimi_diagnose`: gather what a bug report needs of the machine, into a file here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.private_output import append_line
from kimi_prov.ansible.remote import RemoteError, build_failure, call


class ActionModule(ActionBase):  # type: ignore[misc]
    """What was gathered goes to a file of the caller alone: the run's own log keeps none of it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write `folder`/HOST.json, with the file's name in `file`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", ""))
        file = Path(str(self._task.args["folder"])) / f"host-{quote(host, safe='')}.json"
        try:
            gathered = call(self, "diagnose", secret=True)
        except RemoteError as error:
            return result | build_failure(error)
        try:
            append_line(file, gathered)
        except OSError as error:
            return result | build_failure(f"{file}: {error.strerror}", None, "bad_input")
        size = len(json.dumps(gathered))
        return result | {"changed": False, "file": str(file), "characters": size}
