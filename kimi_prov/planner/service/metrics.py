"""Metrics of a machine: their port, its networks, and the services behind it.

Decides: metrics: their port, networks and what is behind it.
Applied by: roles/metrics, roles/proxy, roles/firewall.
Held by: tests/unit/planner/service/test_metrics_plan.py,
  tests/component/on_host/endpoint/test_metrics_frontend.py,
  tests/unit/on_host/metrics/test_metrics_gpus.py,
  tests/unit/on_host/metrics/test_metrics_instances.py, tests/lab/test_metrics.py.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.planner.service import certificates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.plan.service import (
        BackendPlan,
        MetricsFirewall,
        MetricsPlan,
        WebUiPlan,
    )
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# The distribution's node exporter, which a unit of ours runs on the loopback.
PACKAGE = "prometheus-node-exporter"


def make_document(
    host: Host,
    settings: Settings,
    backends: Sequence[BackendPlan],
    web: WebUiPlan | None,
    findings: Findings,
) -> MetricsPlan | None:
    """Return the plan's `metrics`, None where they are turned off."""
    if settings.monitor_local and not settings.metrics:
        findings.add(
            "metrics.nothing_to_watch",
            observed="kimi_monitor_local: true and kimi_metrics: false",
            required="metrics, if a machine monitors itself",
            fix="set kimi_metrics: true, or remove kimi_monitor_local",
        )
    if not settings.metrics:
        return None
    taken = _list_used_ports(settings, backends, web)
    if settings.metrics_port in taken:
        findings.add(
            "metrics.port",
            observed=f"kimi_metrics_port {settings.metrics_port}; the API has {settings.port}, "
            f"services behind the proxy {', '.join(str(row['port']) for row in backends)}"
            + (f", the web UI {web['port']}" if web else ""),
            required="a port of its own",
            fix="set kimi_metrics_port to another port",
        )
    if not settings.metrics_networks:
        findings.add(
            "metrics.closed",
            observed="kimi_metrics_networks is empty",
            required="list the networks that read metrics; the machine itself may",
        )
    return {
        "port": settings.metrics_port,
        "node_port": _choose_node_port(settings, len(backends), taken),
        "allowed_networks": list(settings.metrics_networks),
        "gpus": "nvidia" if host.gpu_bytes and not host.amd else None,
        "package": PACKAGE,
        "key_name": "metrics",
        "key_given": settings.metrics_key_file is not None,
        "dir": paths.METRICS,
        "monitor_local": settings.monitor_local,
    }


def _list_used_ports(
    settings: Settings, backends: Sequence[BackendPlan], web: WebUiPlan | None
) -> set[int]:
    pages = [web[name] for name in ("port", "backend_port", "api_port")] if web else []
    engines = [row["port"] for row in backends]
    return {settings.port, *engines, *pages, *certificates.list_ports(settings, len(backends))}


def _choose_node_port(settings: Settings, instances: int, taken: set[int]) -> int:
    """Return the node exporter's port: the next free one after the engines'.

    Two ports are reserved for the web UI and one for ACME, so that it does not change with them.
    """
    first = certificates.choose_first_port(settings) + instances + 3
    free = (port for port in range(first, first + 9) if port not in {*taken, settings.metrics_port})
    return next(free)


def list_ports(metrics: MetricsPlan | None) -> list[int]:
    """List the ports of the metrics."""
    return [metrics["port"], metrics["node_port"]] if metrics else []


def make_firewall_section(metrics: MetricsPlan) -> MetricsFirewall:
    """Return `metrics` of the plan's `firewall`: a port, and its own networks."""
    networks = [ipaddress.ip_network(text) for text in metrics["allowed_networks"]]
    return {
        "port": metrics["port"],
        "node_port": metrics["node_port"],
        "ipv4": [str(net) for net in networks if net.version == 4],
        "ipv6": [str(net) for net in networks if net.version == 6],
    }
