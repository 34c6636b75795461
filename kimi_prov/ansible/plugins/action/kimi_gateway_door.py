"""Action `kimi_gateway_door`: what gateways and the hosts behind them have to know of this one."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import call_sent


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reads the certificate, and the hash of the machine's key; changes nothing."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `door`; null in check mode on a machine that has none yet."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            found = call_sent(self, "gateway-door")
        except RemoteError as error:
            if self._task.check_mode:
                return result | {"changed": False, "door": None}
            return result | failure(error)
        door = {key: found[key] for key in ("certificate", "key_sha256", "page_certificate")}
        return result | {"changed": False, "door": door}
