"""Action `kimi_outside`: try to reach the port from a host that must not reach it."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, run_shell

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_outside
short_description: Opens a TCP connection from the delegated host
description:
  - Needs a shell there and nothing else.
  - Returns the result in C(found); the acceptance suite judges it.
options:
  address:
    type: str
    required: true
    description: The machine's address.
  port:
    type: int
    required: true
    description: The port.
"""

TIMEOUT_S = 4
OUTCOMES = {0: "connected", 124: "no answer", 1: "refused"}


class ActionModule(HostAction):
    """Changes nothing."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Open the connection and return its result."""
        address, port = args["address"], args["port"]
        row: dict[str, Any] = {"name": self._task.delegate_to, "address": f"{address} {port}"}
        started = time.monotonic()
        script = shlex.quote(f"exec 3<>/dev/tcp/{address}/{port}")
        try:
            text = run_shell(self, f"timeout {TIMEOUT_S} bash -c {script} 2>/dev/null; echo $?")
            row["outcome"] = OUTCOMES.get(int(text.split()[-1]), "untried")
        except (RemoteError, ValueError, IndexError) as error:
            row |= {"outcome": "untried", "detail": str(error)}
        row["seconds"] = round(time.monotonic() - started, 3)
        return {"found": row}
