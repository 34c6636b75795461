"""Plan: weights, and their directories."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Count, NotRequired, Positive, Rule, Sha256


class WeightsPlan(TypedDict):
    """Which weights are fetched, from where."""

    source: str
    manifest: WeightsManifest | None
    dir: str
    bytes: Bytes
    workers: Count
    token_file: str | None
    hf_endpoint: str | None
    bucket: NotRequired[BucketPlan]
    ca_bundle: str | None
    draft: NotRequired[DraftWeights | None]
    converted: ConvertedWeights | None


class WeightsManifest(TypedDict):
    """The files of weights."""

    files: list[WeightsFile]


class WeightsFile(TypedDict):
    """A file of weights."""

    path: str
    size: Count
    sha256: Sha256


class BucketPlan(TypedDict):
    """How buckets are reached; absent where no weights come from one."""

    credentials_file: str | None
    endpoint: str | None
    region: str | None


class DraftWeights(TypedDict):
    """Weights of the draft model."""

    source: str
    manifest: WeightsManifest | None
    dir: str
    bytes: Bytes


class ConvertedWeights(TypedDict):
    """Weights that are fetched in converted form."""

    source: str
    manifest: WeightsManifest | None
    dir: str
    bytes: Bytes
    pools: Positive


ConversionMethod = Literal["AMXINT4", "AMXINT8"]
# This key is a keyword of Python.
_From = TypedDict("_From", {"from": str})


class ConversionPlan(_From):
    """How weights are converted on the machine."""

    method: ConversionMethod
    dir: str
    bytes: Bytes
    layer_bytes: Bytes
    layers: Count
    memory_bytes: Bytes
    threads: Count
    nodes: Annotated[list[Count], Rule(min_items=1)]
    argv: Annotated[list[str], Rule(min_items=1)]


class NeighboursPlan(TypedDict):
    """The hosts of the inventory from which this one takes the weights, and to which it gives."""

    takes_from: NeighbourAddress | None
    """null: it fetches from the source."""
    gives_to: list[NeighbourAddress]
    port: int
    """TCP port at which it shares."""


class NeighbourAddress(TypedDict):
    """A host that fetches the same weights."""

    host: str
    """Its name in the inventory."""
    address: str


class RamDiskPlan(TypedDict):
    """Whether a RAM disk holds the weights, and how it is mounted."""

    enabled: bool
    size_bytes: Bytes
    reason: str
    path: str
    options: str
    workers: Count
    files_dir: str
    service: NotRequired[str | None]
    units: NotRequired[list[str]]
    absent_units: NotRequired[list[str]]


class PageCachePlan(TypedDict):
    """Whether the page cache is filled at boot instead."""

    enabled: bool
    reason: str


class PreparedWeightsPlan(TypedDict):
    """Whether each rank of the engine keeps its slices of the weights for its next start."""

    enabled: bool
    reason: str
    dir: str | None
    """The folder of the files, with one of its own for each instance; null where none are kept."""
    bytes: Bytes
    """Of all files, estimated."""
    manifest: str | None
    """Stands for the bytes of the weights: a digest, or an address with a commit."""


class DiskPlan(TypedDict):
    """What the disk has to hold."""

    path: str
    required_bytes: Bytes
    mounts_for: NotRequired[list[str]]
    """Paths whose file systems the units wait for, with links resolved."""
