"""Action `kimi_scrape_target`: what a host that watches has to know of this one, the key included.

Its result is a secret: the task has `no_log`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import metrics_key
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


def trusted(plan: Mapping[str, Any], certificate: str) -> dict[str, str | None]:
    """Return which `certificate` is trusted alone, or null, and a site's own `authorities`.

    One that is ordered by ACME is renewed between two applies, and mostly by another intermediate:
    its authority is trusted. Raises UserError where the site's file cannot be read.
    """
    if plan["proxy"]["tls"]["mode"] != "acme":
        return {"certificate": certificate, "authorities": None}
    bundle = plan["site"]["ca_bundle"]
    try:
        authorities = Path(bundle).read_text(encoding="utf-8") if bundle else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"kimi_ca_bundle: {bundle} cannot be read: {error}", fix="name a PEM file here"
        ) from error
    return {"certificate": None, "authorities": authorities}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reads certificate and key; changes nothing."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `door`; null in check mode on a machine that has none yet."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        plan, variables = self._task.args["plan"], task_vars or {}
        file = plan["control"].get("metrics_key_file")
        try:
            found = call(self, "metrics-door", secret=True)
            key = metrics_key.load(Path(file)) if file else found["key"]
            certificates = trusted(plan, found["certificate"])
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        except RemoteError as error:
            if self._task.check_mode:
                return result | {"changed": False, "door": None}
            return result | build_failure(error)
        door = {
            "address": str(variables.get("ansible_host") or variables["inventory_hostname"]),
            "port": plan["metrics"]["port"],
            "server_name": found["server_name"],
            **certificates,
            "engines": [row["index"] for row in plan["proxy"]["backends"]],
            "key": key,
        }
        return result | {"changed": False, "door": door}
