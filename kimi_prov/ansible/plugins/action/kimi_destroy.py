"""Action `kimi_destroy`: put the machine back as it was before the first apply."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure, target
from kimi_prov.hardware.bundle import build_zipapp


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends its own copy of the code: the installed one is among what it removes."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Undo what was done; `purge_weights` takes the weights too."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.args.get("confirmed") is not True:
            return result | failure(
                "destroy takes the service off the machine and was not confirmed",
                "answer its question, give --yes, or set destroy_confirmed to true",
                "bad_input",
            )
        options = ["--check"] if self._task.check_mode else []
        options += ["--purge-weights"] if self._task.args.get("purge_weights") else []
        directory = self._make_tmp_path()
        remote = self._connection._shell.join_path(directory, "kimi-target.pyz")
        try:
            with tempfile.TemporaryDirectory(prefix="kimi-prov-") as local:
                self._transfer_file(str(build_zipapp(Path(local) / "kimi-target.pyz")), remote)
            done = target(self, "destroy", *options, zipapp=remote)
        except RemoteError as error:
            return result | failure(str(error))
        finally:
            self._remove_tmp_path(directory)
        result |= {"changed": done["changed"], "kimi_document": done}
        if not done["ok"]:
            result |= failure(
                "not everything could be put back: " + "; ".join(done["troubles"]),
                "mend that and run `kimi-prov destroy` again",
            )
        return result
