"""Action `kimi_logs`: report the journals of our units, once or continuously."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, call, wait_reachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import JournalAnswer

DOCUMENTATION = """
module: kimi_logs
short_description: Reports lines of the journals
description: Lines go to the caller and into no result; a run keeps no copy of a journal.
options:
  units:
    type: list
    elements: str
    required: true
    description: The units.
  lines:
    type: int
    required: true
    description: The number of last lines.
  since:
    type: float
    default: 0
    description: The time of the first line, in seconds since 1970; 0 for all.
  routine:
    type: bool
    default: true
    description: Also lines of checks that were answered.
  follow:
    type: bool
    default: false
    description: Go on until the run is interrupted.
"""

# How long one call waits on the machine for a line, also after the connection was cut.
_WAIT_S = 15.0
# Pause before a machine without a journal is asked again; limit for an unreachable machine.
_POLL_INTERVAL_S = 1.0
_TIMEOUT_S = 900.0


class ActionModule(HostAction):
    """Each call asks for the lines after the last one."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Report the last lines; with `follow` go on."""
        words = ["logs", "--units", ",".join(args["units"])]
        since = ["--since", str(args["since"])] if args["since"] else []
        last = [*since, "--lines", str(args["lines"])]
        started = time.time()
        page: JournalAnswer
        try:
            words += [] if args["routine"] else ["--no-routine"]
            page = call(self, *words, *last)
        except RemoteError:
            if args["routine"]:
                raise
            # A machine of an earlier version does not know the option.
            words.pop()
            page = call(self, *words, *last)
        self._report_page(page)
        while args["follow"]:
            if page["cursor"]:
                more = ["--after", page["cursor"], "--wait", str(_WAIT_S)]
            else:
                time.sleep(_POLL_INTERVAL_S)
                more = ["--since", str(started)]
            page = self._ask([*words, *more])
            if page.get("entries"):
                self._report_page(page)
        return {}

    def _ask(self, words: list[str]) -> JournalAnswer:
        """Ask the machine; report that the connection was cut, and wait for the machine."""
        try:
            return cast("JournalAnswer", call(self, *words))
        except AnsibleConnectionFailure:
            self._report_line("the connection was cut: trying again")
            self._connection.reset()
        page: JournalAnswer = wait_reachable(self, _TIMEOUT_S, lambda: call(self, *words))
        self._report_line("connected again")
        return page

    def _report_page(self, page: JournalAnswer) -> None:
        self.report(phase="logs", entries=page.get("entries") or [])
        if page.get("cut"):
            self._report_line("older lines are left out: ask for fewer with --since or --unit")

    def _report_line(self, line: str) -> None:
        self.report(phase="logs", line=line)
