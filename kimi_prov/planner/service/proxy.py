"""Access of clients to the engines: ports, proxy and firewall.

Decides: the firewall.
Applied by: roles/firewall.
Held by: tests/unit/planner/service/test_gateway.py, tests/component/roles/test_guard.py,
  tests/lab/test_edge.py.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from kimi_prov.contract.ports import find_master_port
from kimi_prov.planner.service import certificates, metrics

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.group import GroupPlan
    from kimi_prov.contract.documents.plan.service import (
        BackendPlan,
        FirewallPlan,
        MetricsPlan,
        ProxyPlan,
        WebUiPlan,
    )
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.hosts.groups import Group
    from kimi_prov.planner.settings.parsing import Settings


def list_backends(settings: Settings, instances: int) -> list[BackendPlan]:
    """Return each instance's index and port, after the proxy's."""
    first = certificates.choose_first_port(settings)
    return [{"index": n, "port": first + n} for n in range(instances)]


def check_ports(
    host: Host,
    settings: Settings,
    backends: list[BackendPlan],
    web: WebUiPlan | None,
    watched: MetricsPlan | None,
    group: Group | None,
    findings: Findings,
) -> None:
    """Report ports that another program holds. On a converged host our own units hold them."""
    ports = [settings.port, *[row["port"] for row in backends]] if backends else []
    if group and not group.rank:
        # A group's engines search their other ports beyond used ones.
        ports += [settings.group_port, find_master_port(settings.group_port)]
    ports += [web["port"], web["backend_port"], web["api_port"]] if web else []
    ports += metrics.list_ports(watched)
    ordering = certificates.list_ports(settings, len(backends))
    check_free_ports(
        host,
        list(dict.fromkeys([*ports, *ordering])),
        findings,
        (" (kimi_web_port for the web UI's)" if web else "")
        + (" (kimi_metrics_port for that of the metrics)" if watched else "")
        + ("; kimi_acme_challenge: dns-01 does without port 80" if ordering else "")
        + ("; kimi_group_port for those of the group" if group else ""),
    )


def check_free_ports(host: Host, ports: list[int], findings: Findings, others: str = "") -> None:
    """Report which of the ports another program holds; `others`: further settings for the fix."""
    if not ports:
        return
    taken = []
    for row in host.listeners:
        ours = (row.unit or "").startswith("kimi-")
        if row.port in ports and not ours:
            taken.append(f"{row.port} by {row.process or 'another program'}")
    taken += _find_redirected_ports(host, ports)
    if taken:
        findings.add(
            "port.taken",
            severity="blocker",
            observed=", ".join(dict.fromkeys(taken)),
            required=f"ports {', '.join(str(port) for port in ports)} free",
            fix="stop that program, or the container that publishes the port (docker ps), or set "
            f"kimi_port to another port{others}",
        )
    else:
        findings.add(
            "port.taken",
            severity="pass",
            observed=", ".join(str(port) for port in ports),
            required="not taken by another program",
        )


def _find_redirected_ports(host: Host, ports: list[int]) -> list[str]:
    """Return ports that a rule redirects, as for containers, although no program listens."""
    own = {None, "127.0.0.1", "::1", *(host.facts["network"].get("addresses") or ())}
    return [
        f"{row['port']} by a rule of iptables that sends it to {row.get('to')}"
        for row in host.facts["firewall"].get("redirected") or ()
        if row["port"] in ports and row.get("address") in own
    ]


def make_document(
    host: Host, settings: Settings, backends: list[BackendPlan], request_body_max_bytes: int
) -> ProxyPlan:
    """Return the plan's `proxy`."""
    own = [settings.host, host.system.hostname, settings.address]
    names = [str(name) for name in [*settings.tls_names, *own, "localhost", "127.0.0.1"] if name]
    return {
        "port": settings.port,
        "tls": {
            **certificates.make_document(settings, len(backends)),
            "names": list(dict.fromkeys(names)),
        },
        "backends": backends,
        "allowed_networks": list(settings.allowed_networks),
        "request_body_max_bytes": request_body_max_bytes,
        "timeouts": {},
    }


def make_firewall_document(
    host: Host,
    settings: Settings,
    group: GroupPlan | None = None,
    watched: MetricsPlan | None = None,
) -> FirewallPlan:
    """Return the plan's `firewall`: an accept of ours cannot undo another table's drop.

    `watched`: the plan's `metrics`. `group`: the plan's. Clients reach only its head; other members
    only have metrics.
    """
    networks = [ipaddress.ip_network(text) for text in settings.allowed_networks]
    serves = group is None or group["rank"] == 0
    ports = [settings.port, *([settings.web_port] if settings.web_ui else [])] if serves else []
    ports += [watched["port"]] if watched else []
    plan: FirewallPlan = {
        "port": settings.port,
        "ports": ports,
        "ipv4": [str(n) for n in networks if n.version == 4],
        "ipv6": [str(n) for n in networks if n.version == 6],
        "manager": host.firewall_manager,
        "challenge_port": certificates.choose_challenge_port(settings) if serves else None,
    }
    if watched:
        plan["metrics"] = metrics.make_firewall_section(watched)
    if group:
        addresses = [ipaddress.ip_address(text) for text in group["peer_addresses"]]
        plan["peers_ipv4"] = [str(address) for address in addresses if address.version == 4]
        plan["peers_ipv6"] = [str(address) for address in addresses if address.version == 6]
        plan["peer_ports"] = list_peer_ports(group)
    return plan


def list_peer_ports(group: GroupPlan) -> list[str]:
    """Return the ports on which members of a group listen for each other, as ranges."""
    own = {
        *(group["control_port"], group["master_port"]),
        *range(group["first_port"], group["last_port"] + 1),
    }
    starts = sorted(port for port in own if port - 1 not in own)
    ends = sorted(port for port in own if port + 1 not in own)
    return [f"{a}-{b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True)]


def check_access(settings: Settings, group: Group | None, findings: Findings) -> None:
    """Check that some network may reach the proxy, if there is one."""
    if not settings.allowed_networks and not (group and group.rank):
        findings.add(
            "firewall.closed",
            observed="kimi_allowed_networks is empty",
            required="list the networks of the clients",
        )
