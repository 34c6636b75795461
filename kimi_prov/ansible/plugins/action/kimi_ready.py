"""Action `kimi_ready`: wait until one token comes through the opened port."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.runner import progress

STEP_S = 5


class ActionModule(ActionBase):  # type: ignore[misc]
    """Says meanwhile what the engine is doing, and stops at once when its unit fails."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask until it answers, a unit fails, or `timeout` seconds are over."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return result | {"changed": False, "msg": "check mode: the port was not tried"}
        host = (task_vars or {}).get("inventory_hostname", "")
        limit = float(self._task.args["timeout"])
        started = time.monotonic()
        restarts: dict[str, int] = {}
        while True:
            try:
                seen = self._ask(restarts)
            except RemoteError as error:
                return result | build_failure(error)
            waited = round(time.monotonic() - started, 1)
            if seen["answered"]:
                return result | {"changed": False, "waited_s": waited, "msg": "the model answers"}
            if waited > limit:
                return result | build_failure(
                    f"no token within {waited:.0f} s ({seen['refusal']}); "
                    f"the engine's last line: {seen['line']}",
                    "raise kimi_start_timeout_s if it is still loading, or read its journal",
                )
            restarts = seen["restarts"]
            progress.report(Display(), host, {"phase": "start", "line": seen["line"]})

    def _ask(self, restarts: dict[str, int]) -> dict[str, Any]:
        """Ask once; a cut connection is no answer yet, for the engine goes on loading."""
        counts = [f"{unit}={count}" for unit, count in restarts.items()]
        try:
            # Sent along: with --tags the machine may have the program of an older version.
            return call_sent(self, "smoke-test", str(STEP_S), *counts)
        except AnsibleConnectionFailure as error:
            time.sleep(STEP_S)
            line = "the connection is cut; trying again"
            return {
                "answered": False,
                "refusal": str(error).splitlines()[0],
                "line": line,
                "restarts": restarts,
            }
