"""Action `kimi_gateway_keys`: bring keys and certificate of the first gateway to the other.

`state`: given (read them, on the first), or taken, with `given`: what that one gave.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call, failure


class ActionModule(ActionBase):  # type: ignore[misc]
    """What comes here is secret: the tasks have `no_log`, and it goes by standard input."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `given`, or what came of taking it; check mode takes nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        given = self._task.args.get("given")
        if self._task.check_mode or (self._task.args["state"] == "taken" and not given):
            # The first was not reached: the keys that were known stay.
            return result
        try:
            if self._task.args["state"] == "given":
                found = call(self, "keys", "give", secret=True)
                return result | {"given": {key: found[key] for key in ("hashes", "book", "pem")}}
            done = call(self, "keys", "take", stdin=given, secret=True)
        except RemoteError as error:
            return result | failure(error)
        return result | {"changed": done["changed"]}
