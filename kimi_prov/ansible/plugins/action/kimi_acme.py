"""Action `kimi_acme`: have the machine order its certificate, or stop ordering one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.errors import UserError

LARGEST_HOOK = 1 << 20


def hook(path: str | None) -> str | None:
    """Return the text of the program that writes records, None where the plan names none."""
    if path is None:
        return None
    try:
        with Path(path).open(encoding="utf-8") as stream:
            text = stream.read(LARGEST_HOOK + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"kimi_acme_dns_hook: {path} cannot be read: {reason}",
            fix="name a script on this machine",
        ) from error
    if not text.startswith("#!") or len(text) > LARGEST_HOOK:
        raise UserError(
            f"kimi_acme_dns_hook: {path} is no script: it has to begin with #!",
            fix=f"begin it with  #!/bin/sh  or another interpreter ({Path(path).name})",
        )
    return text


class ActionModule(ActionBase):  # type: ignore[misc]
    """The order is answered by a unit of the machine: a cut connection does not end it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Converge to the plan's `proxy.tls.acme`; a renewal that can wait fails as a warning."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        check = bool(self._task.check_mode)
        acme = self._task.args["plan"]["proxy"]["tls"]["acme"]
        try:
            wanted = {"acme": acme, "hook": hook(acme["dns_hook"]) if acme else None}
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        more = ["--check"] if check else []
        try:
            done = call(self, "acme", "ensure", *more, stdin=wanted, secret=True)
        except RemoteError as error:
            if check:
                return result | {"changed": bool(acme), "msg": f"would be made: {error.line}"}
            return result | build_failure(error)
        if done["ordered"]:
            result["msg"] = f"certificate ordered: {done['ordered']}"
        if done["warning"]:
            result["warnings"] = [done["warning"]]
        return result | {"changed": done["changed"]}
