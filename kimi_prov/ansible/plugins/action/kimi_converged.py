"""Action `kimi_converged`: ask in one round trip whether a role has anything to do."""

from __future__ import annotations

import hashlib
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call


class ActionModule(ActionBase):  # type: ignore[misc]
    """Registers `converged`; changes nothing, in check mode neither."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Compare `files` (path to text), `units` and each kind of weights with the machine."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        wanted = dict(self._task.args)
        wanted["files"] = {
            path: hashlib.sha256(str(text).encode()).hexdigest()
            for path, text in (wanted.get("files") or {}).items()
        }
        try:
            # An older version may answer, which knows this question by this name alone.
            answer = call(self, "settled", stdin=wanted)
        except RemoteError as error:
            # No program of ours there, or an older one: then there is everything to do.
            answer = {"settled": False, "differs": error.line}
        return result | {
            "changed": False,
            "converged": answer["settled"],
            "differs": answer["differs"],
        }
