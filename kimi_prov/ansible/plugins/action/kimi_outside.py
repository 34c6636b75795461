"""Action `kimi_outside`: try to reach the port from a host that must not.

Runs on the delegated host; needs a shell there and nothing else.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, run_shell

WAIT_S = 4
OUTCOMES = {0: "connected", 124: "no answer", 1: "refused"}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reports what happened; whether that is right is judged by the acceptance suite."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Open a TCP connection to `address`:`port` and say how that went."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        address, port = str(self._task.args["address"]), int(self._task.args["port"])
        found: dict[str, Any] = {"name": self._task.delegate_to, "address": f"{address} {port}"}
        started = time.monotonic()
        opened = shlex.quote(f"exec 3<>/dev/tcp/{address}/{port}")
        try:
            text = run_shell(self, f"timeout {WAIT_S} bash -c {opened} 2>/dev/null; echo $?")
            found["outcome"] = OUTCOMES.get(int(text.split()[-1]), "untried")
        except (RemoteError, ValueError, IndexError) as error:
            found |= {"outcome": "untried", "detail": str(error)}
        found["seconds"] = round(time.monotonic() - started, 3)
        return result | {"changed": False, "found": found}
