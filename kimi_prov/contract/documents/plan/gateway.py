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
    """Names of the units that roles name."""
    marks: dict[str, str]
    """Names of the files that tell that a directory is whole."""
    users: dict[str, str]
    """Users; the group of each has its name."""
    findings: list[Finding]


class GatewaySection(TypedDict):
    """Who is behind it, and beside it."""

    address: str | None
    """What gateways share: kimi_gateway_address."""
    shared: SharedAddress | None
    peers_port: int | None
    """Where the gateways ask each other; null where there is one."""
    waiting: Count
    """Requests that may wait here; who comes then is told to come again."""
    waits_s: int
    """For how long one waits."""
    name: str
    """Its own, as HAProxy and files have it."""
    first: str
    """The gateway on which keys are made: the others take them over."""
    peers: list[PeerGateway]
    hosts: list[ServingHost]
    page: WebUiElsewhere | None
    """The web UI of the first gateway; null on that one, and where none is wished for."""


class SharedAddress(TypedDict):
    """How this gateway has the shared address."""

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
    """At once; more wait here."""


class WebUiElsewhere(TypedDict):
    """The web UI of another gateway, to which clients are handed on."""

    port: int
    first: PageGateway
    name: str
    """By which it is asked."""


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
    """Networks of the other gateways, which hand their clients on."""


class GatewayUpgrade(TypedDict):
    """How an apply goes about a change."""

    keep_versions: Positive
