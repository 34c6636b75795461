"""`kimi-prov/facts/v1`: the facts of a machine."""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from kimi_prov.contract.documents.facts.gpus import AmdFacts, GibFacts, GpuFacts, NvidiaFacts
from kimi_prov.contract.documents.facts.kimi import KimiFacts
from kimi_prov.contract.documents.facts.machine import (
    CgroupFacts,
    CpuFacts,
    DiskFacts,
    FilesystemFacts,
    HostFacts,
    MemoryFacts,
    NumaFacts,
    PackageFacts,
    PythonFacts,
    SecurityFacts,
    TunableFacts,
)
from kimi_prov.contract.documents.facts.measured import BenchFacts, MeasuredFacts
from kimi_prov.contract.documents.facts.network import FirewallFacts, NetworkFacts
from kimi_prov.contract.documents.facts.quote import GroupFacts, NicFacts, PriceFacts
from kimi_prov.contract.documents.facts.recorded import RecordedFacts
from kimi_prov.contract.documents.form import NotRequired, Required
from kimi_prov.contract.documents.lock import LockAnswer, LockRefusal


class Facts(TypedDict, total=False):
    """The facts of a machine. Sizes in bytes; null is unknown. Further keys are allowed."""

    schema: Required[Literal["kimi-prov/facts/v1"]]
    collected_at: str
    clock: ClockFacts
    host: Required[HostFacts]
    python: Required[PythonFacts]
    cpu: Required[CpuFacts]
    numa: Required[NumaFacts]
    memory: Required[MemoryFacts]
    filesystems: Required[list[FilesystemFacts]]
    gpus: Required[list[GpuFacts]]
    nvidia: Required[NvidiaFacts | None]
    tunables: Required[TunableFacts]
    network: Required[NetworkFacts]
    firewall: Required[FirewallFacts]
    packages: Required[PackageFacts]
    kimi: Required[KimiFacts]
    origin: OriginFacts
    origins: dict[str, str]
    """Values from another source than the origin: the catalogue, a measurement."""
    note: str | None
    cgroup: CgroupFacts
    disks: list[DiskFacts]
    nics: list[NicFacts]
    group: GroupFacts | None
    amd: AmdFacts | None
    ld_conf: dict[str, list[str]] | None
    gib: GibFacts | None
    measured: MeasuredFacts | None
    price: PriceFacts | None
    bench: list[BenchFacts] | None
    """The results of a bench of this machine; `check --measured` adds them."""
    security: SecurityFacts
    recorded: RecordedFacts
    """Of a recording: the files that were read, and what they do not tell."""


class ProbeAnswer(Facts):
    """The answer of `probe`: the facts and, where it was to lock the machine, the lock."""

    lock: NotRequired[LockAnswer]


class LockedElsewhere(TypedDict):
    """The answer of `probe --lock` without the facts, where another run holds the lock."""

    lock: LockRefusal


LockedProbeAnswer = Union[ProbeAnswer, LockedElsewhere]


class ClockFacts(TypedDict, total=False):
    """The machine's clock compared with the control machine's."""

    synchronized: bool | None
    """Whether a time server keeps it."""
    offset_s: int
    """Seconds by which it is ahead of the control machine's; negative: behind. Only where a plan
    was made from there."""


class OriginFacts(TypedDict):
    """The source of the facts."""

    kind: Literal["probe", "recording", "spec", "made", "suggested"]
    """probe, recording (a folder with the output of commands), spec (a quote), or made from one of
    them."""
    name: NotRequired[str | None]
    detail: NotRequired[str | None]
