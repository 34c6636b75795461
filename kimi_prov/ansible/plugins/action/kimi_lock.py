"""Action `kimi_lock`: keep a second apply off the machine while one is running."""

from __future__ import annotations

import json
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import apply_lock, switching
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state: present` takes the lock or says who holds it; `absent` gives it back.

    `kept` refuses too where nobody holds it any more: what this run knows of the machine is old.
    With `applied` and `keep` (versions), `absent` ends an apply: its history is written.
    """

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
                return result | self._released(task_vars or {})
            answer = call_sent(self, "lock", "acquire", json.dumps(apply_lock.holder()))
            answer = apply_lock.taken_over(self, answer)
        except RemoteError as error:
            return result | build_failure(error)
        host = str((task_vars or {}).get("inventory_hostname", "the machine"))
        if not answer["held"]:
            return result | apply_lock.refusal(host, answer)
        if self._task.args.get("state") == "kept" and not answer.get("renewed"):
            return result | apply_lock.lost(host)
        return result

    def _released(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Release the lock. With `applied`, whether all went well, the machine notes what was.

        Where it did not, and a switch is still open, the machine goes back to what served.
        """
        applied = self._task.args.get("applied")
        if applied is None:
            return self._given_back(variables)
        ended = switching.request(variables) | {
            "done": boolean(applied, strict=True),
            "keep": self._task.args.get("keep"),
        }
        try:
            answer = call(self, "switch", "end", stdin=ended)
        except RemoteError:
            # No program there yet, or an older one: that must not leave the lock behind.
            answer = call_sent(self, "switch", "end", stdin=ended)
        return {"entry": answer["entry"], "warnings": answer["told"]}

    def _given_back(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Release the lock; of another machine's that is not reached only a warning is given.

        Ansible would take the failed machine, whose task this is, for the one that is not reached.
        """
        other = self._task.delegate_to
        try:
            apply_lock.release(self)
        except AnsibleConnectionFailure:
            if other in (None, variables.get("inventory_hostname")):
                raise
            return {"warnings": [f"{other} was not reached: its apply lock stays until it is old"]}
        return {}
