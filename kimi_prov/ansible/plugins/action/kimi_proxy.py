"""Action `kimi_proxy`: bring the proxy's certificate and keys to the machine, and have it run.

`state`: present (certificate and keys), running, or absent where nobody asks for anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import api_keys, metrics_key
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.contract import groups
from kimi_prov.contract.gateways import is_gateway
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


def _pem(path: str | None, option: str) -> str:
    try:
        return Path(path or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"{option}: {path} cannot be read: {reason}", fix="name a PEM file on this machine"
        ) from error


def settings(plan: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read the control files that the plan names; keys become hashes here.

    `known`: the variables of all hosts, of which gateways and the hosts behind them take each
    other's door.
    """
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
        "api_keys": given if groups.serves_clients(plan) else None,
        "page": page is not None,
        "metrics": metrics_key.settings(plan),
        **_doors(plan, known or {}),
    }


def _doors(plan: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the gateways before a host, or of the hosts behind a gateway."""

    def door(host: str) -> Mapping[str, Any]:
        return ((known.get(host) or {}).get("__gateway_door") or {}).get("answer") or {}

    if is_gateway(plan):
        page = plan["gateway"].get("page")
        rows = plan["gateway"]["hosts"]
        hosts = {row["server"]: door(row["host"]).get("certificate") for row in rows}
        if page:
            hosts[page["first"]["server"]] = door(page["first"]["host"]).get("page_certificate")
        return {"hosts": hosts, "shares_page": bool((plan["web"] or {}).get("gateways"))}
    rows = plan.get("gateways") or ()
    return {"gateways": {row["key_name"]: door(row["host"]).get("key_sha256") for row in rows}}


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
            wanted = settings(plan, (task_vars or {}).get("hostvars"))
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        try:
            done = call(
                self, "proxy-ensure", *(["--check"] if check else []), stdin=wanted, secret=True
            )
        except RemoteError as error:
            if check:
                return result | {"changed": True, "msg": f"would be made: {error.line}"}
            return result | build_failure(error)
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
            done = call(self, "proxy-ensure", verb, *(["--check"] if check else []))
        except RemoteError as error:
            return (
                {"changed": True, "msg": f"would run: {error.line}"}
                if check
                else build_failure(error)
            )
        return {"changed": done["changed"], "did": done["did"]}
