"""Action `kimi_destroy`: put the machine back as it was before the first apply."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends its own copy of the code: the installed one is among what it removes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Undo what was done; `purge_weights` and `purge_web` take weights and chats too."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.args.get("confirmed") is not True:
            return result | failure(
                "destroy takes the service off the machine and was not confirmed",
                "answer its question, give --yes, or set destroy_confirmed to true",
                "bad_input",
            )
        options = ["--check"] if self._task.check_mode else []
        options += ["--purge-weights"] if self._task.args.get("purge_weights") else []
        options += ["--purge-web"] if self._task.args.get("purge_web") else []
        try:
            done = call_sent(self, "destroy", *options)
        except RemoteError as error:
            return result | failure(error)
        result |= {"changed": done["changed"], "kimi_document": done}
        if not done["ok"]:
            result |= failure(
                "not everything could be put back: " + "; ".join(done["troubles"]),
                "remove the cause and run `kimi-prov destroy` again",
            )
        return result
