"""Plan: the ports, which networks may reach them, and what answers there."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from kimi_prov.contract.documents.form import Count, NotRequired, Positive, Required, Rule


class ProxyPlan(TypedDict):
    """The proxy, which has the opened port."""

    port: Count
    tls: TlsPlan
    backends: list[BackendPlan]
    allowed_networks: list[str]
    request_body_max_bytes: NotRequired[Positive]
    """The largest body of a request; a larger one gets 413."""
    timeouts: dict[str, Any]


TlsMode = Literal["self-signed", "files", "acme"]
FirewallManager = Literal["nftables", "ufw", "firewalld"]


class TlsPlan(TypedDict):
    """The certificate."""

    mode: TlsMode
    trusted: bool
    """Whether browsers can trust it without further settings."""
    acme: AcmePlan | None
    cert_file: str | None
    key_file: str | None
    names: list[str]


class AcmePlan(TypedDict):
    """What is ordered by ACME, and how; null without an order."""

    directory_url: str
    contact: str | None
    names: list[str]
    challenge: Literal["http-01", "dns-01"]
    port: int | None
    """Port of the loopback on which the client answers http-01."""
    dns_hook: str | None
    ca_bundle: str | None


class BackendPlan(TypedDict):
    """An engine behind the proxy."""

    index: Count
    port: Count


class FirewallPlan(TypedDict, total=False):
    """Which networks may reach which port."""

    port: Required[Count]
    ports: list[Count]
    """All ports that it guards."""
    ipv4: Required[list[str]]
    ipv6: Required[list[str]]
    metrics: MetricsFirewall
    manager: Required[FirewallManager]
    challenge_port: Required[int | None]
    """Port that is open to all while a challenge of ACME is answered."""
    peers_ipv4: list[str]
    """Addresses of the other members of a group; only in a group."""
    peers_ipv6: list[str]
    peer_ports: list[str]
    """Ports that only the members reach: 29501 or 29510-29541."""
    neighbours: NeighboursFirewall
    gateways: GatewayPeersFirewall


class GatewayPeersFirewall(TypedDict):
    """Ports of a gateway for the other gateways alone."""

    ipv4: list[str]
    ipv6: list[str]
    port: int
    page_port: int | None


class NeighboursFirewall(TypedDict):
    """A port for hosts that fetch the same weights, while they do."""

    ipv4: list[str]
    ipv6: list[str]
    port: int


class MetricsFirewall(TypedDict):
    """One more port, for its own networks; absent where the machine only has metrics."""

    port: int
    node_port: int
    ipv4: list[str]
    ipv6: list[str]


class GatewayBefore(TypedDict):
    """A gateway through which clients come."""

    host: str
    """Its name in the inventory."""
    address: str
    """The address from which it connects."""
    key_name: Annotated[str, Rule(pattern=r"^gateway\.")]
    """The name of its API key."""


class WebUiPlan(TypedDict):
    """The web UI; null where none is requested. Sizes in bytes."""

    name: NotRequired[str]
    version: str
    lock: str
    python: NotRequired[str]
    env_name: str
    env_dir: str
    port: int
    """Behind the proxy, with its certificate."""
    backend_port: int
    """The web UI's own port, on the loopback."""
    api_port: int
    """On the loopback, where the web UI reaches the engines through the proxy."""
    data: str
    """Folder of accounts, chats and uploads."""
    unit: str
    user: str
    key_name: str
    signup: NotRequired[bool]
    sees_images: NotRequired[bool]
    upload_max_bytes: NotRequired[int]
    install_bytes: NotRequired[int]
    environment: dict[str, str]
    """Its variables, without secrets."""


class UsagePlan(TypedDict):
    """How the use of keys is counted."""

    keep_days: Positive
    """Days for which the use of each key is kept."""
    waits_s: NotRequired[Positive]
    """Seconds that a client waits by itself for a limit; after more it is told not to ask again."""


class MetricsPlan(TypedDict):
    """Metrics on a port of their own, behind the proxy; null where none are requested."""

    port: int
    """Behind the proxy, with its certificate."""
    node_port: int
    """The node exporter's own port, on the loopback."""
    allowed_networks: list[str]
    gpus: Literal["nvidia"] | None
    """Whose GPUs are read."""
    package: str
    key_name: str
    key_given: bool
    """Whether the control machine has the key; else the machine makes one."""
    dir: str
    """Files that the node exporter serves."""
    monitor_local: bool
    """Whether the machine runs Prometheus and Alertmanager for itself."""


class TimeoutsPlan(TypedDict):
    """Time limits."""

    start_s: Count
    unit_start_s: NotRequired[int]
