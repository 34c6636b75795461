"""Action `kimi_logs`: hand the journals of our units on, as they are or as they grow."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible.remote import RemoteError, build_failure, call, wait_reachable
from kimi_prov.runner import progress

# How long one question to a machine waits there for a line; it outlives a cut connection so long.
_WAIT_S = 15.0
# Before a machine without any journal is asked again, and one that is away is given up.
_PAUSE_S = 1.0
_PATIENCE_S = 900.0


class ActionModule(ActionBase):  # type: ignore[misc]
    """Lines go to whoever runs this, and into no result: a run keeps no copy of a journal."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Report the last lines of `units`; with `follow` go on until somebody ends it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = (task_vars or {}).get("inventory_hostname", "")
        arguments = self._task.args
        words = ["logs", "--units", ",".join(arguments["units"])]
        since = arguments.get("since")
        words += ["--since", str(since)] if since else []
        asked = time.time()
        try:
            found = call(self, *words, "--lines", str(arguments["lines"]))
            self._report(host, found)
            while arguments.get("follow"):
                if not found["cursor"]:
                    time.sleep(_PAUSE_S)
                    ask = [*words[:3], "--since", str(asked)]
                else:
                    ask = [*words[:3], "--after", found["cursor"], "--wait", str(_WAIT_S)]
                found = self._patiently(host, ask)
                if found.get("entries"):
                    self._report(host, found)
        except RemoteError as error:
            return result | build_failure(error)
        return result | {"changed": False}

    def _patiently(self, host: str, words: list[str]) -> dict[str, Any]:
        """Ask; a machine that went away meanwhile is told of, and waited for."""
        try:
            return call(self, *words)
        except AnsibleConnectionFailure:
            self._note(host, "the connection was cut: trying again")
            self._connection.reset()
        found = wait_reachable(self, _PATIENCE_S, lambda: call(self, *words))
        self._note(host, "connected again")
        return found

    def _report(self, host: str, found: dict[str, Any]) -> None:
        entries = found.get("entries") or []
        progress.report(Display(), host, {"phase": "logs", "entries": entries})
        if found.get("cut"):
            self._note(host, "older lines are left out: ask for fewer with --since or --unit")

    def _note(self, host: str, line: str) -> None:
        progress.report(Display(), host, {"phase": "logs", "line": line})
