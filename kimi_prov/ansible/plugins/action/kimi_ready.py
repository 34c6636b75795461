"""Action `kimi_ready`: wait until one token arrives through the open port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure
from kimi_prov.ansible.send import call_sent

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_ready
short_description: Waits until the model answers
description: Reports what the engine does meanwhile, and stops at once when its unit fails.
options:
  timeout:
    type: float
    required: true
    description: Seconds to wait.
"""

POLL_INTERVAL_S = 5


class ActionModule(HostAction):
    """The machine waits for each answer."""

    SKIPPED_IN_CHECK_MODE = "the port was not tried"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Ask until the model answers, a unit fails, or the time is over."""
        started = time.monotonic()
        restarts: dict[str, int] = {}
        while True:
            answer = self._ask(restarts)
            waited_s = round(time.monotonic() - started, 1)
            if answer["answered"]:
                return {"waited_s": waited_s, "msg": "the model answers"}
            if waited_s > args["timeout"]:
                return build_failure(
                    f"no token within {waited_s:.0f} s ({answer['refusal']}); "
                    f"the engine's last line: {answer['line']}",
                    "raise kimi_start_timeout_s if it is still loading, or read its journal",
                )
            restarts = answer["restarts"]
            self.report(phase="start", line=answer["line"])

    def _ask(self, restarts: dict[str, int]) -> dict[str, Any]:
        """Ask once; a cut connection counts as no answer yet, because the engine still loads."""
        counts = [f"{unit}={count}" for unit, count in restarts.items()]
        try:
            # The code is sent along: with --tags the machine may have an older version.
            return dict(call_sent(self, "smoke-test", str(POLL_INTERVAL_S), *counts))
        except AnsibleConnectionFailure as error:
            time.sleep(POLL_INTERVAL_S)
            return {
                "answered": False,
                "refusal": str(error).splitlines()[0],
                "line": "the connection is cut; trying again",
                "restarts": restarts,
            }
