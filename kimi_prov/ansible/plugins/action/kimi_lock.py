"""Action `kimi_lock`: keep a second apply off the machine while one is running."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible import apply_lock
from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import run_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state: present` takes the lock or says who holds it; `absent` gives it back."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Take or give back. In check mode nothing is written and nobody kept off."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"msg": "check mode: no lock is taken"}
        try:
            if self._task.args.get("state", "present") == "absent":
                apply_lock.release(self)
                return result
            answer = run_sent(self, "lock", "acquire", json.dumps(apply_lock.holder()))
            answer = apply_lock.taken_over(self, answer)
        except RemoteError as error:
            return result | failure(error)
        if answer["held"]:
            return result
        host = (task_vars or {}).get("inventory_hostname", "the machine")
        return result | apply_lock.refusal(str(host), answer)
