"""Action `kimi_monitor`: Prometheus and Alertmanager on a monitoring host."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.ansible.control_files import read_control_file
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import monitoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import Plan

DOCUMENTATION = """
module: kimi_monitor
short_description: Converges Prometheus and Alertmanager
description: Sends its own copy of the code, because a host that only monitors has none.
options:
  state:
    type: str
    choices: [noted, running, absent]
    default: running
    description: C(noted) records what exists before the packages are installed.
  hosts:
    type: list
    elements: str
    default: []
    description: Names of the monitored hosts; this run has read the targets of those it reached.
  settings:
    type: dict
    default: {}
    description: Ports, networks and limits.
  receivers:
    type: dict
    default: {}
    description: The receivers of alerts.
  units:
    type: dict
    default: {}
    description: The text of each unit by its name.
"""

_LOOPBACK = "127.0.0.1"
_VERBS = {"noted": "note", "absent": "remove"}


def read_secret(path: str, option: str) -> str:
    """Return a file's only line. Raises UserError, which never holds the content."""
    text = read_control_file(path, option).strip()
    if not text or "\n" in text:
        raise UserError(f"{option}: {path} does not hold one line", fix="write it in one line")
    return text


def check_networks(networks: list[str]) -> list[str]:
    """Return the networks that may reach both ports. Raises UserError for an invalid one."""
    for text in networks:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise UserError(
                f"monitor_networks: {clean_text.clean_line(text)} is no network",
                fix="write addresses or networks, as 10.0.9.0/24",
            ) from None
    return list(networks)


def build_receivers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the receivers of alerts, with secrets. Raises UserError for incomplete e-mail."""
    url_file, mail = options.get("webhook_url_file"), None
    addresses = {key: options.get(f"email_{key}") for key in ("to", "from", "smarthost")}
    if any(addresses.values()):
        if not all(addresses.values()):
            lacking = ", ".join(f"monitor_alert_email_{k}" for k, v in addresses.items() if not v)
            raise UserError(f"e-mail of alerts: {lacking} is not set", fix="set all three")
        password_file = options.get("email_password_file")
        mail = {
            **addresses,
            "require_tls": bool(options.get("email_require_tls", True)),
            "username": options.get("email_username") or None,
            "password": read_secret(password_file, "monitor_alert_email_password_file")
            if password_file
            else None,
        }
    url = read_secret(url_file, "monitor_alert_webhook_url_file") if url_file else None
    if url is not None and not url.startswith(("http://", "https://")):
        raise UserError(
            f"monitor_alert_webhook_url_file: {url_file} holds no http(s) URL",
            fix="write the URL in one line",
        )
    return {"webhook_url": url, "email": mail}


def map_rank_addresses(plan: Plan) -> dict[str, str]:
    """Return the addresses at which a head that monitors itself reads its ranks, by host.

    They are on the group's own network: ranks let in the head's address there.
    """
    metrics, group = plan.get("metrics"), plan.get("group")
    if not metrics or not group or not metrics.get("monitor_local"):
        return {}
    return {row["host"]: row["address"] for row in group["members"] if row["address"]}


def build_targets(
    names: list[str],
    targets: Mapping[str, Any],
    own: str,
    *,
    addresses: set[str],
    near: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the scrape target of each host; null for a host that this run did not reach.

    `near`: addresses of hosts that replace those by which Ansible reaches them.
    """
    rows: dict[str, Any] = {}
    for name in names:
        target = targets.get(name)
        if target is not None and (name == own or target["address"] in addresses):
            # The host reaches its own port on the loopback, whatever networks are allowed.
            target = {**target, "address": _LOOPBACK}
        elif target is not None:
            target = {**target, "address": (near or {}).get(name, target["address"])}
        rows[name] = target
    return rows


class ActionModule(HostAction):
    """Keys and receivers are sent on standard input."""

    ERROR_IN_CHECK_MODE = "change"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Record what exists, or converge."""
        if args["state"] in _VERBS:
            return dict(call_sent(self, *self.add_check("monitor", _VERBS[args["state"]])))
        request = self._build_request(args)
        answer = call_sent(self, *self.add_check("monitor", "ensure"), stdin=request)
        result = {"changed": answer["changed"], "did": answer["did"]}
        if answer["unknown"]:
            names = ", ".join(answer["unknown"])
            result["msg"] = f"not watched yet: {names}; an apply that reaches them adds them"
        return result

    def _build_request(self, args: Mapping[str, Any]) -> dict[str, Any]:
        known = {name: self.variables["hostvars"][name] for name in args["hosts"]}
        # A host's plan says whether it has metrics; a host without a plan in this run is kept.
        names = [
            name
            for name, own in known.items()
            if (own.get("kimi_plan") or {"metrics": True})["metrics"] is not None
        ]
        registered = {name: known[name].get("__metrics_target") or {} for name in names}
        settings = args["settings"]
        return {
            "settings": {**settings, "networks": check_networks(settings["networks"])},
            "receivers": build_receivers(args["receivers"]),
            "rules": monitoring.read_texts("rules", ".yml"),
            "consoles": monitoring.read_texts("consoles", ".html", ".lib", ".css", ".js"),
            "units": args["units"],
            "hosts": build_targets(
                names,
                {name: row.get("target") for name, row in registered.items()},
                self.host,
                addresses={self.address},
                near=map_rank_addresses(
                    cast("Plan", known.get(self.host, {}).get("kimi_plan") or {})
                ),
            ),
        }
