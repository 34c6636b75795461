"""Action `kimi_lock`: keep a second apply off the machine while one runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible import apply_lock, switching
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, call
from kimi_prov.ansible.send import call_sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import SwitchEndAnswer
    from kimi_prov.contract.documents.lock import LockAnswer

DOCUMENTATION = """
module: kimi_lock
short_description: Takes the apply lock of the machine, or releases it
options:
  state:
    type: str
    choices: [present, kept, absent]
    default: present
    description:
      - C(present) takes the lock or reports its holder.
      - C(kept) also refuses a lock that is free, because the facts of this run are old then.
      - C(absent) releases it.
  applied:
    type: bool
    description:
      - Whether the apply succeeded; with it, C(absent) ends an apply and writes its history.
      - If it failed and a switch is open, the machine goes back to what served before.
  keep:
    type: int
    description: The number of versions that the history keeps.
"""


class ActionModule(HostAction):
    """In check mode no lock is taken."""

    SKIPPED_IN_CHECK_MODE = "no lock is taken"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Take the lock, check it or release it."""
        if args["state"] == "absent":
            return self._release() if args["applied"] is None else self._end_apply(args)
        holder = json.dumps(apply_lock.describe_holder())
        taken = cast("LockAnswer", call_sent(self, "lock", "acquire", holder))
        answer = apply_lock.take_over(self, taken)
        if not answer["held"]:
            return apply_lock.build_refusal(self.host, answer)
        if args["state"] == "kept" and not answer.get("renewed"):
            return apply_lock.build_loss(self.host)
        return {}

    def _end_apply(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Release the lock; the machine records what was applied, or goes back to what served."""
        request = switching.build_request(self.variables)
        request |= {"done": args["applied"], "keep": args["keep"]}
        try:
            ended: SwitchEndAnswer = call(self, "switch", "end", stdin=request)
        except RemoteError:
            # Without a working program on the machine the lock is removed by the shell.
            ended = call_sent(self, "switch", "end", stdin=request)
        waits = ended.get("key_waits", True)
        return {"entry": ended["entry"], "warnings": ended["told"], "kimi_key_waits": waits}

    def _release(self) -> dict[str, Any]:
        """Release the lock; if the task is delegated and that host is not reached, only warn.

        Ansible would report the host of the task as unreachable, not the other host.
        """
        other = self._task.delegate_to
        try:
            apply_lock.release(self)
        except AnsibleConnectionFailure:
            if other in (None, self.variables.get("inventory_hostname")):
                raise
            return {"warnings": [f"{other} was not reached: its apply lock stays until it is old"]}
        return {}
