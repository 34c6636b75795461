"""Action `kimi_status`: what runs on the machine now, once or again and again."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.acceptance import suite
from kimi_prov.ansible.remote import RemoteError, call, wait_reachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.runner import progress

# How long a machine that is watched may be away.
_PATIENCE_S = 900.0


class ActionModule(ActionBase):  # type: ignore[misc]
    """A machine that is not provisioned is a status too, no failure."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read the status of the machine into `kimi_document`; `every`: report it so often.

        `only_watches`: a host that has no code of ours, so it is sent.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        every_s = float(self._task.args.get("every") or 0)
        if every_s:
            self._watch(str((task_vars or {}).get("inventory_hostname", "")), every_s)
        try:
            ask = call_sent if self._task.args.get("only_watches") else call
            document = ask(self, "status")
        except RemoteError as error:
            document = {"ok": False, "provisioned": False, "detail": error.line}
        said = document.pop("stand_in", None)
        made = {"random_weights": False, "trained_on": None}
        plan = {
            "model": {key: document.pop(key, default) for key, default in made.items()},
            "stand_in": {"said": said} if said else None,
        }
        document["stand_ins"] = suite.stand_ins(plan, task_vars or {})
        return result | {"changed": False, "kimi_document": document}

    def _watch(self, host: str, every_s: float) -> None:
        """Report again and again, until somebody ends it."""
        while True:
            began = time.monotonic()
            progress.report(Display(), host, {"phase": "status", "document": self._look(host)})
            time.sleep(max(0.0, every_s - (time.monotonic() - began)))

    def _look(self, host: str) -> dict[str, Any]:
        try:
            return call(self, "status", "--now")
        except RemoteError as error:
            return {"ok": False, "provisioned": False, "detail": error.line}
        except AnsibleConnectionFailure:
            self._connection.reset()
        away = {"ok": False, "provisioned": False, "detail": "the connection was cut: trying again"}
        progress.report(Display(), host, {"phase": "status", "document": away})
        found: dict[str, Any] = wait_reachable(
            self, _PATIENCE_S, lambda: call(self, "status", "--now")
        )
        return found
