"""Gateways: hosts that answer for several machines at one address.

This module decides what a gateway runs, and what changes on a host behind one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.contract import gateways, key_rules, paths, unit_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner import web
from kimi_prov.planner.engine import interpreter
from kimi_prov.planner.findings import Findings, make_finding
from kimi_prov.planner.hosts import networks as networks_of
from kimi_prov.planner.hosts import site
from kimi_prov.planner.service import certificates, metrics, proxy, request_size
from kimi_prov.planner.software import driver, installation, system
from kimi_prov.planner.storage import disk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan.gateway import (
        GatewayModel,
        GatewayPlan,
        GatewaySection,
        SharedAddress,
        WebUiElsewhere,
    )
    from kimi_prov.contract.documents.plan.service import (
        FirewallPlan,
        GatewayBefore,
        GatewayPeersFirewall,
        MetricsPlan,
        ProxyPlan,
        WebUiPlan,
    )
    from kimi_prov.contract.documents.plan.software import ControlFiles, PackageInstallation
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.engine.interpreter import InterpreterChoice
    from kimi_prov.planner.settings.parsing import Settings

# Twice the planned number of a host: the engine's own queue is short then, and never empty.
_REQUESTS_PER_SLOT = 2
_MIN_REQUESTS = 8
_START_TIMEOUT_S = 600
_V4 = 4
# Files that only a gateway has: those of its hosts, and of the shared address.
_GATEWAY_PATHS = {
    "hosts": paths.HOSTS,
    "address_config": paths.ADDRESS_CONFIG,
    "page_pem": paths.WEB_UI_PEM,
    "peers_pem": paths.PEERS_PEM,
}
# VRRP's identifiers.
_MAX_ROUTER_ID = 255


@dataclass(frozen=True)
class ServingHost:
    """A serving host for a gateway: its name, address, port, and requests at once."""

    host: str
    address: str
    port: int
    requests: int


@dataclass(frozen=True)
class GatewayAddress:
    """A gateway for other hosts: its name and its address."""

    host: str
    address: str


def count_requests(settings: Settings) -> int:
    """Return how many requests at once a gateway sends to a host."""
    if settings.gateway_requests is not None:
        return settings.gateway_requests
    many = 1 if settings.auto("instances") else int(settings.instances)
    return max(_REQUESTS_PER_SLOT * settings.concurrency * many, _MIN_REQUESTS)


def list_networks(rows: Sequence[GatewayAddress]) -> list[str]:
    """Return the addresses of gateways as networks; a name that is no address is left out."""
    addresses = []
    for row in rows:
        try:
            addresses.append(str(ipaddress.ip_network(row.address)))
        except ValueError:
            continue
    return addresses


def limit_to_gateways(settings: Settings, rows: Sequence[GatewayAddress]) -> Settings:
    """Return the settings of a host behind gateways: only they connect to its port.

    Certificate, keys and networks of the inventory are those of the gateways. Gateways and the
    host trust each other's own certificate, so no authority is needed. The web UI, with its one
    database of accounts, runs on the first gateway.
    """
    if not rows:
        return settings
    return replace(
        settings,
        allowed_networks=list_networks(rows),
        tls="self-signed",
        tls_cert_file=None,
        tls_key_file=None,
        api_keys_file=None,
        web_ui=False,
    )


def check_web_ui(settings: Settings, rows: Sequence[GatewayAddress]) -> list[Finding]:
    """Find that the web UI of a host behind gateways runs on the first gateway."""
    if not rows or not settings.web_ui:
        return []
    return [
        make_finding(
            "web.gateway",
            observed=f"kimi_web_ui; {', '.join(row.host for row in rows)} before this machine",
            required=f"one web UI for all machines: {rows[0].host} has it, and this machine none",
        )
    ]


def make_document(rows: Sequence[GatewayAddress]) -> list[GatewayBefore]:
    """Return the plan's `gateways`: those before a host, and the key of each."""
    return [
        {"host": row.host, "address": row.address, "key_name": gateways.build_key_name(row.host)}
        for row in rows
    ]


def list_usage_paths() -> dict[str, str]:
    """Return the paths that only a host behind gateways has: those of its reported usage."""
    return {"usage_recent_socket": paths.USAGE_RECENT_SOCKET}


def make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: Sequence[ServingHost],
    peers: Sequence[GatewayAddress],
) -> GatewayPlan:
    """Decide everything for a gateway. Pure, as `planner.plan.make_plan`.

    `hosts`: those behind it, in the inventory's order; `peers`: all gateways, itself among them.
    """
    findings, model = Findings(), catalogue.model(settings.model)
    host = read_host(facts, catalogue)
    system.check_system(host, catalogue, findings)
    others = [row for row in peers if row.host != settings.host]
    served_names = list(settings.served_names) or [model.name]
    has_page = settings.web_ui and (not peers or peers[0].host == settings.host)
    python = _choose_python(host, catalogue) if has_page else None
    page = None
    if python is not None:
        runtime = web.Runtime(python.python, python.build, host.system.arch)
        page = web.make_document(settings, catalogue, model, runtime, served_names, 0, findings)
    web.check_port(settings, 0, findings, [settings.group_port] if others else [])
    alone = replace(settings, monitor_local=False)
    watched = metrics.make_document(host, alone, [], page, findings)
    _check_ports(host, settings, page, watched, findings)
    proxy.check_access(settings, None, findings)
    shared = _plan_shared_address(host, settings, peers, findings)
    elsewhere = _describe_first_web_ui(settings, peers[0]) if settings.web_ui and not page else None
    packages = _plan_installation(host, settings, catalogue, page, python, findings)
    plan: GatewayPlan = {
        "schema": gateways.SCHEMA,
        "stand_in": None,
        "group": None,
        "gateway": _make_gateway_section(settings, hosts, peers, shared, elsewhere),
        "model": _make_model_section(model, served_names),
        "instances": [],
        "proxy": _plan_proxy(host, settings, model, peers),
        "firewall": _plan_firewall(host, settings, others, page, watched),
        # The other gateway passes its clients to this one.
        "web": {**page, "gateways": list_networks(others)} if page else None,
        "metrics": watched,
        "rest": {"memory": "keep", "idle": None, "power": None, "wake": "off"},
        "usage": {"keep_days": settings.usage_keep_days, "waits_s": key_rules.WAITS_S},
        "upgrade": {"keep_versions": settings.keep_versions},
        "drift": {"timer": settings.drift_timer},
        "driver": driver.NO_DRIVER,
        "packages": _list_packages(host, settings, python, watched),
        "site": site.make_document(settings, host),
        "control": _make_control_section(settings, page),
        "timeouts": {"start_s": _START_TIMEOUT_S, "unit_start_s": _START_TIMEOUT_S},
        "paths": {**paths.collect_paths(), **_GATEWAY_PATHS},
        "units": {**unit_names.collect_units(), "gateway_address": unit_names.GATEWAY_ADDRESS},
        "marks": paths.collect_marks(),
        "users": paths.collect_users(),
        "findings": findings.rows(),
    }
    if packages:
        plan["installation"] = packages
    return plan


def _make_gateway_section(
    settings: Settings,
    hosts: Sequence[ServingHost],
    peers: Sequence[GatewayAddress],
    shared: SharedAddress | None,
    elsewhere: WebUiElsewhere | None,
) -> GatewaySection:
    """Return the hosts to which a gateway sends requests, and the other gateways."""
    others = [row for row in peers if row.host != settings.host]
    return {
        "address": settings.gateway_address,
        "shared": shared,
        "peers_port": settings.group_port if others else None,
        # As many requests wait as are computed; further ones are answered with "try again".
        "waiting": sum(row.requests for row in hosts),
        "name": gateways.build_server_name(settings.host),
        # The gateway that creates keys, which the others copy.
        "first": peers[0].host if peers else settings.host,
        "peers": [
            {
                "host": row.host,
                "server": gateways.build_server_name(row.host),
                "address": row.address,
            }
            for row in others
        ],
        "hosts": [
            {
                "host": row.host,
                "server": gateways.build_server_name(row.host),
                "address": row.address,
                "port": row.port,
                "requests": row.requests,
            }
            for row in hosts
        ],
        "page": elsewhere,
    }


def _make_model_section(model: Model, served_names: list[str]) -> GatewayModel:
    section: GatewayModel = {
        "name": model.name,
        "served_names": served_names,
        "random_weights": model.random_weights,
    }
    if model.trained_on:
        section["trained_on"] = model.trained_on
    return section


def _plan_proxy(
    host: Host, settings: Settings, model: Model, peers: Sequence[GatewayAddress]
) -> ProxyPlan:
    """Plan the proxy with one certificate for all gateways: clients see no difference."""
    most = request_size.choose_gateway_request_size(settings, model)
    frontend = proxy.make_document(host, settings, [], most)
    reached = [name for row in peers for name in (row.host, row.address)]
    names = [*settings.tls_names, settings.gateway_address, *reached, "localhost", "127.0.0.1"]
    frontend["tls"]["names"] = list(dict.fromkeys(name for name in names if name))
    return frontend


def _list_packages(
    host: Host,
    settings: Settings,
    python: InterpreterChoice | None,
    watched: MetricsPlan | None,
) -> list[str]:
    page: Sequence[str] = ()
    if python is not None:
        page = system.list_web_ui_packages(host, None if python.build else python.python.path)
    return system.list_gateway_packages(
        orders=certificates.choose_mode(settings) == "acme",
        shared=bool(settings.gateway_address),
        watched=watched is not None,
        page=page,
    )


def _make_control_section(settings: Settings, page: WebUiPlan | None) -> ControlFiles:
    return {
        "api_keys_file": settings.api_keys_file,
        "hf_token_file": None,
        "web_admin_file": settings.web_admin_file if page else None,
        "metrics_key_file": settings.metrics_key_file,
    }


def _plan_firewall(
    host: Host,
    settings: Settings,
    others: Sequence[GatewayAddress],
    page: WebUiPlan | None,
    watched: MetricsPlan | None,
) -> FirewallPlan:
    section = proxy.make_firewall_document(host, settings, watched=watched)
    if others:
        section["gateways"] = _plan_peers(others, settings, page)
    return section


def _plan_peers(
    others: Sequence[GatewayAddress], settings: Settings, page: WebUiPlan | None
) -> GatewayPeersFirewall:
    """Return the hosts that may connect as a gateway: the other gateway, also for the web UI."""
    peer_networks = [ipaddress.ip_network(text) for text in list_networks(others)]
    return {
        "ipv4": [str(net) for net in peer_networks if net.version == _V4],
        "ipv6": [str(net) for net in peer_networks if net.version != _V4],
        "port": settings.group_port,
        "page_port": page["port"] if page else None,
    }


def _check_ports(
    host: Host,
    settings: Settings,
    page: WebUiPlan | None,
    watched: MetricsPlan | None,
    findings: Findings,
) -> None:
    """Report ports that another program holds: of the proxy, ACME, the web UI, the metrics."""
    ports = [settings.port, *certificates.list_ports(settings, 0), *metrics.list_ports(watched)]
    ports += [settings.web_port] if settings.web_ui else []
    ports += [page["backend_port"], page["api_port"]] if page else []
    more = " (kimi_web_port for the page's)" if settings.web_ui else ""
    proxy.check_free_ports(host, ports, findings, more)


def _choose_python(host: Host, catalogue: Catalogue) -> InterpreterChoice:
    """Choose the interpreter of a web UI; `web.lock` reports one without pinned packages."""
    return interpreter.choose_interpreter(host, catalogue.web[-1], catalogue, Findings())


def _plan_installation(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    page: WebUiPlan | None,
    python: InterpreterChoice | None,
    findings: Findings,
) -> PackageInstallation | None:
    """Return the plan's `installation` of a web UI, and check its requirements."""
    if page is None or python is None:
        return None
    disk.check_web_ui_space(host, page, python.build, findings)
    web.check_memory(host.memory_bytes, catalogue.web[-1], findings)
    forward_proxy = site.make_document(settings, host)["proxy"]
    return installation.make_package_section(settings, python.build, catalogue, forward_proxy)


def _describe_first_web_ui(settings: Settings, first: GatewayAddress) -> WebUiElsewhere:
    """Return the port at which clients are passed to the first gateway's web UI."""
    return {
        "port": settings.web_port,
        "first": {
            "host": first.host,
            "server": gateways.build_server_name(first.host),
            "address": first.address,
            "port": settings.web_port,
        },
        "name": gateways.WEB_UI_NAME,
    }


def _plan_shared_address(
    host: Host, settings: Settings, peers: Sequence[GatewayAddress], findings: Findings
) -> SharedAddress | None:
    """Plan the shared address of this gateway, and report what prevents it."""
    address = settings.gateway_address
    if address is None:
        if len(peers) > 1:
            findings.add(
                "gateway.address",
                severity="info",
                observed=f"{len(peers)} gateways and no kimi_gateway_address",
                required="an address that moves to the other where one is lost",
                fix="set kimi_gateway_address, or have clients know both",
            )
        return None
    own = next((row.address for row in peers if row.host == settings.host), None)
    interface = networks_of.find_interface(host, own)
    try:
        shared = ipaddress.ip_address(address)
    except ValueError:
        shared = None
    near = [a.network for a in interface.addresses] if interface else []
    if shared is None or interface is None or not any(shared in net for net in near):
        findings.add(
            "gateway.address",
            severity="blocker",
            observed=f"{address}; this gateway is reached at {own}, an address of "
            f"{interface.name if interface else 'none of its interfaces'}",
            required="a free address of the network of the gateways, and ansible_host their own",
            fix="set kimi_gateway_address to an address of that network, and ansible_host of each "
            "gateway to its own address",
        )
        return None
    return {
        "interface": interface.name,
        "own": own,
        # One number for both gateways, which others on the same network hardly use.
        "router": int(shared) % _MAX_ROUTER_ID + 1,
    }
