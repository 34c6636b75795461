"""Action `kimi_proxy`: bring the proxy's certificate and keys to the machine, and have it run.

`state`: present (certificate and keys), running, or absent where nothing is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import api_keys, metrics_key
from kimi_prov.ansible.remote import RemoteError, failure, target
from kimi_prov.errors import UserError


def _pem(path: str | None, option: str) -> str:
    try:
        return Path(path or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"{option}: {path} cannot be read: {reason}", fix="name a PEM file on this machine"
        ) from error


def settings(plan: dict[str, Any]) -> dict[str, Any]:
    """Read the control files that the plan names; keys become hashes here."""
    tls = plan["proxy"]["tls"]
    wanted = {"mode": tls["mode"], "names": tls["names"]}
    if tls["mode"] == "files":
        wanted["cert_pem"] = _pem(tls["cert_file"], "kimi_tls_cert_file")
        wanted["key_pem"] = _pem(tls["key_file"], "kimi_tls_key_file")
    file = plan["control"]["api_keys_file"]
    given = api_keys.load(Path(file)) if file else {}
    page = plan["web"]
    if page and page["key_name"] in given:
        raise UserError(
            f"{file}: the name {page['key_name']} is the page's own (kimi_web_ui)",
            fix="give that key another name",
        )
    return {
        "tls": wanted,
        "api_keys": given,
        "page": page is not None,
        "metrics": metrics_key.settings(plan),
    }


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends certificate and hashes over standard input; nothing secret is in the result."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Bring certificate and keys to the plan; reports what changed by name."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        check = bool(self._task.check_mode)
        state = self._task.args.get("state", "present")
        if state != "present":
            return result | self._converge("run" if state == "running" else "remove", check=check)
        plan = self._task.args["plan"]
        try:
            wanted = settings(plan)
        except UserError as error:
            return result | failure(error.message, error.fix, "bad_input")
        try:
            done = target(
                self, "proxy-ensure", *(["--check"] if check else []), stdin=wanted, secret=True
            )
        except RemoteError as error:
            if check:
                return result | {"changed": True, "msg": f"would be made: {error.line}"}
            return result | failure(error)
        keys = done["keys"]
        if keys["created"] or keys["removed"]:
            result["msg"] = f"keys made: {keys['created']}, keys gone: {keys['removed']}"
        return result | {
            "changed": done["changed"],
            "key_names": keys["names"],
            "converged": done.get("converged", False),
        }

    def _converge(self, verb: str, *, check: bool) -> dict[str, Any]:
        """Make the proxy `run` what is in place, or `remove` it; `did` says how."""
        try:
            done = target(self, "proxy-ensure", verb, *(["--check"] if check else []))
        except RemoteError as error:
            return {"changed": True, "msg": f"would run: {error.line}"} if check else failure(error)
        return {"changed": done["changed"], "did": done["did"]}
