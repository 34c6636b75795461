"""Action `kimi_status`: read what runs on the machine, once or repeatedly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.acceptance import suite
from kimi_prov.ansible.host_action import HostAction, complete_known_findings
from kimi_prov.ansible.remote import RemoteError, call, wait_reachable

if TYPE_CHECKING:
    from collections.abc import Mapping


DOCUMENTATION = """
module: kimi_status
short_description: Reads the status of the machine
description: Returns the host's document, also for a machine that is not provisioned.
options:
  every:
    type: float
    default: 0
    description: Repeat the report after so many seconds, until the run is interrupted.
  only_watches:
    type: bool
    default: false
    description: The host only monitors and has no code of ours, so the code is sent.
"""

# How long a machine may be unreachable while its status is repeated.
_TIMEOUT_S = 900.0


class ActionModule(HostAction):
    """Changes nothing."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Read the status; with `every` report it repeatedly."""
        if args["every"]:
            self._watch(args["every"])
        try:
            document = self._read(only_watches=args["only_watches"])
        except RemoteError as error:
            document = _build_document(error.line)
        if "findings" in document:
            document["findings"] = complete_known_findings(document["findings"])
        document["stand_ins"] = suite.name_stand_ins(
            document.pop("stand_in", None),
            random_weights=bool(document.pop("random_weights", None)),
            trained=bool(document.pop("trained_on", None)),
            variables=self.variables,
        )
        return {"kimi_document": document}

    def _read(self, *, only_watches: bool) -> dict[str, Any]:
        if not only_watches:
            return dict(call(self, "status"))
        # It packs the program that is sent, for which no other host waits.
        from kimi_prov.ansible.send import call_sent  # noqa: PLC0415

        return dict(call_sent(self, "status"))

    def _watch(self, every_s: float) -> None:
        while True:
            started = time.monotonic()
            self.report(phase="status", document=self._observe())
            time.sleep(max(0.0, every_s - (time.monotonic() - started)))

    def _observe(self) -> dict[str, Any]:
        """Return the machine's status; if it is unreachable, report that and wait for it."""
        try:
            return dict(call(self, "status", "--now"))
        except RemoteError as error:
            return _build_document(error.line)
        except AnsibleConnectionFailure:
            self._connection.reset()
        away = _build_document("the connection was cut: trying again")
        self.report(phase="status", document=away)
        return wait_reachable(self, _TIMEOUT_S, lambda: call(self, "status", "--now"))


def _build_document(detail: str) -> dict[str, Any]:
    return {"ok": False, "provisioned": False, "detail": detail}
