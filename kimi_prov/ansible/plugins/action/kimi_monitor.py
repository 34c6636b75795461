"""Action `kimi_monitor`: Prometheus and Alertmanager on a host that watches others, or itself.

`state`: noted (before the packages come), running or absent. `hosts`: names of those
that are watched, of which this run has read what it reached.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import monitoring

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOPBACK = "127.0.0.1"
_VERBS = {"noted": "note", "absent": "remove"}


def secret(path: str, option: str) -> str:
    """Return the line in a file on the control machine. Raises UserError without its content."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"{option}: {path} cannot be read: {reason}", fix="name a file on this machine"
        ) from error
    if not text or "\n" in text:
        raise UserError(f"{option}: {path} does not hold one line", fix="write it in one line")
    return text


def networks(given: list[str]) -> list[str]:
    """Return who may reach both ports. Raises UserError for what is no network."""
    for text in given:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise UserError(
                f"monitor_networks: {clean_text.clean_line(text)} is no network",
                fix="write addresses or networks, as 10.0.9.0/24",
            ) from None
    return list(given)


def receivers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return where alerts go, secrets included. Raises UserError for half an e-mail's settings."""
    url_file, mail = given.get("webhook_url_file"), None
    named = {key: given.get(f"email_{key}") for key in ("to", "from", "smarthost")}
    if any(named.values()):
        if not all(named.values()):
            lacking = ", ".join(f"monitor_alert_email_{k}" for k, v in named.items() if not v)
            raise UserError(f"e-mail of alerts: {lacking} is not set", fix="set all three")
        password_file = given.get("email_password_file")
        mail = {
            **named,
            "require_tls": bool(given.get("email_require_tls", True)),
            "username": given.get("email_username") or None,
            "password": secret(password_file, "monitor_alert_email_password_file")
            if password_file
            else None,
        }
    url = secret(url_file, "monitor_alert_webhook_url_file") if url_file else None
    if url is not None and not url.startswith(("http://", "https://")):
        raise UserError(
            f"monitor_alert_webhook_url_file: {url_file} holds no http(s) URL",
            fix="write the URL in one line",
        )
    return {"webhook_url": url, "email": mail}


def ranks(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses at which a head that watches itself reads its ranks, by host.

    On the group's own network: its address there is the one that ranks let in.
    """
    if not (plan.get("metrics") or {}).get("monitor_local"):
        return {}
    group = plan.get("group") or {"members": ()}
    return {row["host"]: row["address"] for row in group["members"] if row["address"]}


def watched(
    names: list[str],
    doors: Mapping[str, Any],
    own: str,
    *,
    addresses: set[str],
    near: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what is read of each host; null for one that this run did not reach.

    `near`: other addresses of hosts than those by which Ansible reaches them.
    """
    found: dict[str, Any] = {}
    for name in names:
        door = doors.get(name)
        if door is not None and (name == own or door["address"] in addresses):
            # Its own port is reached on the loopback, whatever networks may.
            door = {**door, "address": _LOOPBACK}
        elif door is not None:
            door = {**door, "address": (near or {}).get(name, door["address"])}
        found[name] = door
    return found


class ActionModule(ActionBase):  # type: ignore[misc]
    """Sends its own copy of the code: a host that only watches has none."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Note what was there, or converge; keys and receivers go by standard input."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        options = ["--check"] if self._task.check_mode else []
        try:
            if args.get("state") in _VERBS:
                return result | call_sent(self, "monitor", _VERBS[args["state"]], *options)
            wanted = self._wanted(args, variables)
            done = call_sent(self, "monitor", "ensure", *options, stdin=wanted)
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        except RemoteError as error:
            if self._task.check_mode:
                return result | {"changed": True, "msg": f"would be made: {error.line}"}
            return result | build_failure(error)
        result |= {"changed": done["changed"], "did": done["did"]}
        if done["unknown"]:
            names = ", ".join(done["unknown"])
            result["msg"] = f"not watched yet: {names}; an apply that reaches them adds them"
        return result

    def _wanted(self, args: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        known = {name: variables["hostvars"][name] for name in args["hosts"]}
        # The plan of a host knows whether it shows any; one that was not planned is kept.
        names = [
            name
            for name, own in known.items()
            if (own.get("kimi_plan") or {"metrics": True})["metrics"] is not None
        ]
        doors = {name: (known[name].get("__metrics_target") or {}).get("door") for name in names}
        own = str(variables["inventory_hostname"])
        return {
            "settings": {
                **args["settings"],
                "networks": networks(args["settings"]["networks"]),
            },
            "receivers": receivers(args["receivers"]),
            "rules": monitoring.texts("rules", ".yml"),
            "consoles": monitoring.texts("consoles", ".html", ".lib", ".css", ".js"),
            "units": dict(args["units"]),
            "hosts": watched(
                names,
                doors,
                own,
                addresses={str(variables.get("ansible_host") or own)},
                near=ranks(known.get(own, {}).get("kimi_plan") or {}),
            ),
        }
