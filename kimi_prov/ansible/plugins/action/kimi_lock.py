"""Action `kimi_lock`: keep a second apply off the machine while one is running."""

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
      - C(present) takes the lock or says who holds it.
      - C(kept) refuses too where nobody holds it any more, for what this run knows is old then.
      - C(absent) releases it.
  applied:
    type: bool
    description:
      - Whether all went well; where it is given, C(absent) ends an apply and writes its history.
      - Where it did not, and a switch is open, the machine goes back to what served.
  keep:
    type: int
    description: How many versions the history keeps.
"""


class ActionModule(HostAction):
    """In check mode nothing is written and nobody kept off."""

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
        """Release the lock; the machine records what was applied, or goes back."""
        request = switching.build_request(self.variables)
        request |= {"done": args["applied"], "keep": args["keep"]}
        try:
            ended: SwitchEndAnswer = call(self, "switch", "end", stdin=request)
        except RemoteError:
            # No program there yet, or an older one: that must not leave the lock behind.
            ended = call_sent(self, "switch", "end", stdin=request)
        return {"entry": ended["entry"], "warnings": ended["told"]}

    def _release(self) -> dict[str, Any]:
        """Release the lock; of another machine's that is not reached only a warning is given.

        Ansible would take the failed machine, whose task this is, for the one that is not reached.
        """
        other = self._task.delegate_to
        try:
            apply_lock.release(self)
        except AnsibleConnectionFailure:
            if other in (None, self.variables.get("inventory_hostname")):
                raise
            return {"warnings": [f"{other} was not reached: its apply lock stays until it is old"]}
        return {}
