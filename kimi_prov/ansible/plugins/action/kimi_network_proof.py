"""Action `kimi_network_proof`: measure the network between the hosts of a group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.group_hosts import group_of
from kimi_prov.ansible.remote import RemoteError, call
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def obstacle(group: Sequence[str], play: Sequence[str], forks: int) -> str:
    """Say why the hosts of a group would wait for each other in vain; empty where they would not.

    `play`: the hosts that this run still has. Beyond `forks` Ansible starts hosts when others have
    ended.
    """
    lacking = [host for host in group if host not in play]
    if lacking:
        return f"{', '.join(lacking)} left out by --limit, or not reached"
    return f"--forks {forks} is less than the {len(play)} hosts" if forks < len(play) else ""


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs on all hosts of the group at once, or on none: each waits for the others.

    It never fails: `kimi_verify` judges what `proof` holds.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return {"proof"}: the machine's answer, or {"error"} with the reason for none."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        start = time.monotonic()
        try:
            proof = self._measured(task_vars or {})
        except (RemoteError, UserError) as error:
            proof = {"error": str(error)}
        return result | {"proof": {**proof, "seconds": round(time.monotonic() - start, 3)}}

    def _measured(self, variables: dict[str, Any]) -> dict[str, Any]:
        _, hosts = group_of(variables, int(self._task.args["hosts"]))
        here = variables["ansible_play_hosts"]
        why = obstacle(hosts, here, int(variables.get("ansible_forks") or len(here)))
        return {"error": f"not measured: {why}"} if why else call(self, "network-proof")
