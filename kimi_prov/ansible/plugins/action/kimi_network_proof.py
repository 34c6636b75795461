"""Action `kimi_network_proof`: measure the network between the hosts of a group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.group_hosts import find_group
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, call
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOCUMENTATION = """
module: kimi_network_proof
short_description: Measures the network between the hosts of a group
description:
  - Runs on all hosts of the group at once, or on none, because each waits for the others.
  - Never fails; returns C(proof), the machine's answer or an C(error), which C(kimi_verify) judges.
options:
  hosts:
    type: int
    required: true
    description: The number of hosts that serve one model.
"""


def find_obstacle(group: Sequence[str], play: Sequence[str], forks: int) -> str:
    """Return why the hosts of a group would wait for each other in vain, "" if they would not.

    `play`: the hosts that this run still has. Beyond `forks`, Ansible starts a host only when
    another has ended.
    """
    lacking = [host for host in group if host not in play]
    if lacking:
        return f"{', '.join(lacking)} left out by --limit, or not reached"
    return f"--forks {forks} is less than the {len(play)} hosts" if forks < len(play) else ""


class ActionModule(HostAction):
    """Changes nothing."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Measure, and report how long that took."""
        started = time.monotonic()
        try:
            proof = self._measure(args["hosts"])
        except (RemoteError, UserError) as error:
            proof = {"error": str(error)}
        return {"proof": {**proof, "seconds": round(time.monotonic() - started, 3)}}

    def _measure(self, size: int) -> dict[str, Any]:
        _, hosts = find_group(self.variables, size)
        play = self.variables["ansible_play_hosts"]
        forks = int(self.variables.get("ansible_forks") or len(play))
        obstacle = find_obstacle(hosts, play, forks)
        return {"error": f"not measured: {obstacle}"} if obstacle else call(self, "network-proof")
