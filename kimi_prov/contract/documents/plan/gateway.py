"""Plan: a gateway, which answers for the machines behind it."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.findings import Finding
from kimi_prov.contract.documents.form import Count, NotRequired, Positive
from kimi_prov.contract.documents.plan.engine import InstancePlan
from kimi_prov.contract.documents.plan.lifecycle import DriftPlan, RestPlan
from kimi_prov.contract.documents.plan.service import (
    FirewallPlan,
    MetricsPlan,
    ProxyPlan,
    TimeoutsPlan,
    UsagePlan,
    WebUiPlan,
)
from kimi_prov.contract.documents.plan.software import (
    ControlFiles,
    DriverPlan,
    PackageInstallation,
    SitePlan,
)


class GatewayPlan(TypedDict):
    """The plan of one gateway.

    Every decision for it. Sizes in bytes, times in seconds. Further keys are allowed.
    """

    schema: Literal["kimi-prov/gateway-plan/v1"]
    stand_in: None
    group: None
    gateway: GatewaySection
    model: GatewayModel
    instances: list[InstancePlan]
    """Empty: it runs no engine."""
    proxy: ProxyPlan
    firewall: FirewallPlan
    web: GatewayWebUi | None
    installation: NotRequired[PackageInstallation]
    """Where it has the web UI."""
    metrics: MetricsPlan | None
    rest: RestPlan
    usage: UsagePlan
    upgrade: GatewayUpgrade
    drift: DriftPlan
    driver: DriverPlan
    packages: list[str]
    site: SitePlan
    control: ControlFiles
    timeouts: TimeoutsPlan
    paths: dict[str, str]
    units: dict[str, str]
    """Names of the units that roles use."""
    marks: dict[str, str]
    """Names of the files that mark a directory as complete."""
    users: dict[str, str]
    """Users; the group of each has its name."""
    findings: list[Finding]


class GatewaySection(TypedDict):
    """The hosts behind it, and the other gateways."""

    address: str | None
    """The address that gateways share: kimi_gateway_address."""
    shared: SharedAddress | None
    peers_port: int | None
    """Where the gateways check each other; null for a single gateway."""
    waiting: Count
    """Requests that may wait here; further ones are told to come again."""
    name: str
    """Its own name, as HAProxy and files have it."""
    first: str
    """The gateway on which keys are made: the others copy them."""
    peers: list[PeerGateway]
    hosts: list[ServingHost]
    page: WebUiElsewhere | None
    """The web UI of the first gateway; null on that one, and where none is requested."""


class SharedAddress(TypedDict):
    """How this gateway gets the shared address."""

    interface: str
    own: str | None
    router: Positive
    """The number of the pair in VRRP."""


class PeerGateway(TypedDict):
    """Another gateway."""

    host: str
    """Its name in the inventory."""
    server: str
    """The same as HAProxy and files have it."""
    address: str


class ServingHost(PeerGateway):
    """A host behind the gateway."""

    port: int
    requests: Positive
    """Requests at once; more wait here."""


class WebUiElsewhere(TypedDict):
    """The web UI of another gateway, to which clients are passed on."""

    port: int
    first: PageGateway
    name: str
    """The TLS name under which it is requested."""


class PageGateway(PeerGateway):
    """The gateway that has the web UI."""

    port: int


class GatewayModel(TypedDict):
    """The model that the machines behind it serve."""

    name: str
    served_names: list[str]
    random_weights: bool
    trained_on: NotRequired[Literal["suite"]]


class GatewayWebUi(WebUiPlan):
    """The web UI of this gateway."""

    gateways: list[str]
    """Networks of the other gateways, which pass their clients on."""


class GatewayUpgrade(TypedDict):
    """How an apply carries out a change."""

    keep_versions: Positive
