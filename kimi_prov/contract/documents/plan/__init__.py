"""`kimi-prov/plan/v1`: every decision for one machine."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict, Union

from kimi_prov.contract.documents.findings import Finding
from kimi_prov.contract.documents.form import NotRequired, Rule
from kimi_prov.contract.documents.plan.engine import (
    EnginePlan,
    ExpertsPlan,
    HybridPlan,
    InstancePlan,
    ModelPlan,
    MoeTuningPlan,
    NcclPlan,
    ParallelPlan,
    SpeculativePlan,
    StandInPlan,
)
from kimi_prov.contract.documents.plan.estimates import MemoryPlan, PowerPlan, ThroughputPlan
from kimi_prov.contract.documents.plan.gateway import GatewayPlan
from kimi_prov.contract.documents.plan.group import GroupPlan
from kimi_prov.contract.documents.plan.lifecycle import (
    DriftPlan,
    RestPlan,
    UpgradePlan,
    WatchdogPlan,
)
from kimi_prov.contract.documents.plan.service import (
    FirewallPlan,
    GatewayBefore,
    MetricsPlan,
    ProxyPlan,
    TimeoutsPlan,
    UsagePlan,
    WebUiPlan,
)
from kimi_prov.contract.documents.plan.software import (
    ControlFiles,
    DriverPlan,
    InstallationPlan,
    SitePlan,
    TuningPlan,
)
from kimi_prov.contract.documents.plan.weights import (
    ConversionPlan,
    DiskPlan,
    NeighboursPlan,
    PageCachePlan,
    PreparedWeightsPlan,
    RamDiskPlan,
    WeightsPlan,
)


class MachinePlan(TypedDict):
    """One host's plan of kimi-prov/plan/v1.

    Every decision for one machine. Sizes in bytes, times in seconds. Further keys are allowed.
    """

    schema: Literal["kimi-prov/plan/v1"]
    engine: EnginePlan
    model: ModelPlan
    weights: WeightsPlan
    instances: Annotated[list[InstancePlan], Rule(min_items=1)]
    memory: MemoryPlan
    throughput: ThroughputPlan
    ram_disk: RamDiskPlan
    warm: PageCachePlan
    prepared_weights: NotRequired[PreparedWeightsPlan]
    neighbours: NotRequired[NeighboursPlan]
    """Absent where it fetches the weights itself and shares them with no host."""
    disk: DiskPlan
    gateways: NotRequired[Annotated[list[GatewayBefore], Rule(min_items=1)]]
    """The gateways through which clients reach this host; absent where they reach it directly."""
    usage: UsagePlan
    metrics: NotRequired[MetricsPlan | None]
    watchdog: WatchdogPlan
    drift: DriftPlan
    rest: RestPlan
    tuning: TuningPlan
    proxy: ProxyPlan
    web: NotRequired[WebUiPlan | None]
    firewall: FirewallPlan
    driver: DriverPlan
    packages: list[str]
    site: SitePlan
    control: ControlFiles
    upgrade: UpgradePlan
    timeouts: TimeoutsPlan
    paths: dict[str, str]
    findings: list[Finding]
    parallel: ParallelPlan
    experts: NotRequired[ExpertsPlan | None]
    group: NotRequired[GroupPlan | None]
    hybrid: HybridPlan | None
    power: NotRequired[PowerPlan | None]
    speculative: NotRequired[SpeculativePlan | None]
    stand_in: NotRequired[StandInPlan | None]
    """The plan without `kimi_engine_stand_in`; null where nothing is replaced."""
    moe_tuning: NotRequired[MoeTuningPlan | None]
    nccl: NcclPlan
    conversion: ConversionPlan | None
    units: NotRequired[dict[str, str]]
    """Names of the units that roles use."""
    marks: NotRequired[dict[str, str]]
    """Names of the files that mark a directory as complete."""
    users: NotRequired[dict[str, str]]
    """Users; the group of each has its name."""
    installation: NotRequired[InstallationPlan]


Plan = Union[MachinePlan, GatewayPlan]
