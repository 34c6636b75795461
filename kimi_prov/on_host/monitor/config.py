"""The configurations of Prometheus and Alertmanager. No effects: settings in, text out.

Both read YAML, of which JSON is a subset.

Decides: a host that monitors: what it reads of which host, and its limits.
Applied by: roles/monitor.
Held by: tests/component/on_host/monitor/test_monitor_config.py, tests/lab/test_metrics.py.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.paths import MONITOR_ETC, MONITOR_FIREWALL, MONITOR_TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

HOSTS = f"{MONITOR_ETC}/hosts"
RULES = f"{MONITOR_ETC}/rules"
CONSOLES = f"{MONITOR_ETC}/consoles"
_HEAD = "# Written by kimi-prov (role monitor); changes here are overwritten.\n"
_RECEIVER = "site"
_SET = """
    set ipv{version} {{
        type ipv{version}_addr
        flags interval
        auto-merge{elements}
    }}
"""
# Declared, deleted, made again: one transaction, in which the old table need not exist.
_TABLE = """\
table {table}
delete table {table}
table {table} {{{sets}
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        tcp dport {{ {ports} }} jump guard
    }}

    chain guard {{
        iif lo accept
        ip saddr @ipv4 accept
        ip6 saddr @ipv6 accept
        counter drop comment "{mark}"
    }}
}}
"""
# nftables.service empties the whole rule set when it starts, reloads and stops.
FIREWALL_DROP_IN = f"""{_HEAD}\
[Service]
ExecStartPost=-/usr/sbin/nft -f {MONITOR_FIREWALL}
ExecReload=-/usr/sbin/nft -f {MONITOR_FIREWALL}
ExecStopPost=-/usr/sbin/nft -f {MONITOR_FIREWALL}
"""


def _format_document(document: Mapping[str, Any]) -> str:
    return _HEAD + json.dumps(document, indent=1, sort_keys=True) + "\n"


def build_prometheus_config(
    settings: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return Prometheus' configuration; `hosts`: what to scrape of each, by its file's name."""
    interval = f"{settings['scrape_interval_s']}s"
    alertmanager = f"{settings['listen']}:{settings['alertmanager_port']}"
    return _format_document(
        {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [f"{RULES}/*.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [_build_scrape(file, hosts[file]) for file in sorted(hosts)],
        }
    )


def _build_scrape(file: str, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scrape job of one host; `ca_file`: whether it has a file of trusted CAs."""
    trusts = {"ca_file": f"{HOSTS}/{file}.crt"} if host["ca_file"] else {}
    target = f"{bracket_address(host['address'])}:{host['port']}"
    return {
        # Has to be unique; the label `job` says what it is.
        "job_name": host["name"],
        "scheme": "https",
        "tls_config": {**trusts, "server_name": host["server_name"]},
        "authorization": {"type": "Bearer", "credentials_file": f"{HOSTS}/{file}.key"},
        "static_configs": [
            {"targets": [target], "labels": {"host": host["name"], **labels}}
            for labels in _list_paths(host["engines"])
        ],
    }


def find_trusted(target: Mapping[str, Any], roots: str) -> str | None:
    """Return the trust settings for a host; None: exactly what this system trusts, `roots`."""
    if target["certificate"] is not None:
        return str(target["certificate"])
    authorities = target["authorities"]
    # A file replaces the system's certificates.
    return None if authorities is None else f"{roots}\n{authorities}"


def _list_paths(engines: list[int]) -> list[dict[str, str]]:
    path = "__metrics_path__"
    return [
        {"job": "kimi-node", path: "/metrics/node"},
        {"job": "kimi-proxy", path: "/metrics/proxy"},
        *(
            {"job": "kimi-engine", "engine": str(index), path: f"/metrics/engine/{index}"}
            for index in engines
        ),
    ]


def bracket_address(address: str) -> str:
    """Return an address in the form before a port."""
    return f"[{address}]" if ":" in address else address


def build_firewall(settings: Mapping[str, Any]) -> str:
    """Return the packet filter of both ports: only the machine itself and `networks` reach them.

    Neither port has a password. The last rule contains a hash of the list that is loaded.
    """
    nets = [ipaddress.ip_network(text, strict=False) for text in settings["networks"]]
    table = " ".join(MONITOR_TABLE)
    sets = "".join(
        _SET.format(version=version, elements=_format_elements(nets, version)) for version in (4, 6)
    )
    ports = f"{settings['port']}, {settings['alertmanager_port']}"
    mark = hashlib.sha256((sets + ports).encode()).hexdigest()[:16]
    return _HEAD + _TABLE.format(table=table, sets=sets, ports=ports, mark=f"kimi-prov {mark}")


def _format_elements(nets: list[Any], version: int) -> str:
    found = [str(net) for net in nets if net.version == version]
    return f"\n        elements = {{ {', '.join(found)} }}" if found else ""


def find_firewall_comment(text: str) -> str:
    """Return the text by which a loaded packet filter is known to be this one."""
    return text.rpartition('comment "')[2].partition('"')[0]


def build_alertmanager_config(receivers: Mapping[str, Any]) -> str:
    """Return Alertmanager's configuration, with the secrets of its receivers in it.

    `receivers`: `webhook_url` and `email`, null where there is none.
    """
    site: dict[str, Any] = {"name": _RECEIVER}
    if url := receivers.get("webhook_url"):
        site["webhook_configs"] = [{"url": url, "send_resolved": True}]
    if mail := receivers.get("email"):
        site["email_configs"] = [_build_email_receiver(mail)]
    return _format_document(
        {
            "route": {
                "receiver": _RECEIVER,
                "group_by": ["alertname", "host"],
                "group_wait": "30s",
                "group_interval": "5m",
                "repeat_interval": "4h",
            },
            "receivers": [site],
        }
    )


def _build_email_receiver(mail: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "to": mail["to"],
        "from": mail["from"],
        "smarthost": mail["smarthost"],
        "require_tls": mail["require_tls"],
        "send_resolved": True,
    }
    password: str | None = mail.get("password")
    if mail.get("username"):
        found |= {"auth_username": mail["username"], "auth_password": password or ""}
    return found
