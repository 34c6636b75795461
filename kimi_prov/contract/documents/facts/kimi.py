"""Facts: what kimi-prov has installed on the machine."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Whole


class KimiFacts(TypedDict, total=False):
    """What kimi-prov has installed on the machine."""

    plan_sha256: str | None
    target_sha256: str | None
    engine_envs: list[str]
    tools: list[str]
    """Complete environments of tools."""
    pythons: list[str]
    """Bundled interpreters."""
    engine_pythons: dict[str, str]
    """Environments with a bundled interpreter, and that interpreter's name."""
    engine_link: str | None
    kept_envs: list[str]
    """Environments of the versions that rollback can restore."""
    switch_open: bool
    """Whether a switch to another version was begun and has not ended."""
    models: list[ModelFacts]
    models_verified: list[str]
    prepared: list[ModelFacts]
    """What engines keep of their weights for their next start."""
    ram_disk_mounted: bool | None
    user: bool | None
    proxy_user: bool | None
    acme_user: bool | None
    files: dict[str, FileFacts | None]
    """Files that roles write, by path; null where there is no regular file. A role writes only
    files that differ."""
    accounts: dict[str, AccountFacts | None]
    """Accounts with our names, whoever made them."""
    web_envs: list[str]
    """Complete environments of the web UI."""
    web_pythons: dict[str, str]
    """Those with a bundled interpreter, and that interpreter's name."""
    web_link: str | None
    """The one in use."""
    groups: dict[str, int | None]
    """Groups of our names and their numbers; null where there is none."""
    node_exporter_ours: bool
    """Whether the distribution's node exporter was installed by kimi-prov."""
    forward_proxy: bool
    """Whether an apply wrote the site's forward proxy."""
    before_kept: bool | None
    before: dict[str, Any] | None
    """The machine's state before the first apply, which `destroy` restores."""
    units: dict[str, str | None]
    services: dict[str, ServiceFacts]
    """Services that our packages bring, in their present state."""
    served: ServedFacts | None
    """What the plan on the machine chose; null where there is none, or it cannot be read."""
    serving: dict[str, ServingFacts]
    """What each running engine depends on, by its unit."""
    driver: dict[str, Any] | None
    """What an earlier apply did to the driver."""
    nccl: dict[str, Any] | None
    """What an earlier apply recorded of NCCL."""


class ModelFacts(TypedDict):
    """A folder of weights on the disk."""

    dir: str
    disk_bytes: Whole


class FileFacts(TypedDict):
    """A file that roles write."""

    sha256: str
    owner: str
    group: str
    mode: str


class ServiceFacts(TypedDict, total=False):
    """A service of systemd."""

    enabled: bool
    active: bool


class AccountFacts(TypedDict):
    """An account with one of our names."""

    uid: int
    gid: int
    home: str
    shell: str
    processes: list[str]
    """Names of its processes that run in none of our units."""


class ServedFacts(TypedDict):
    """What the plan chose by which a machine serves. Another version's plan may lack some of it."""

    model: str
    engine: str
    version: str
    kv_dtype: str | None
    tensor: int | None
    pipeline: int | None
    data: int | None
    decode_context: int | None
    instances: int
    concurrency: int | None
    """Requests at once that were asked for, of all engines."""
    requests: int | None
    """Requests at once of an engine."""
    gpu_share: float | None
    experts: NotRequired[str | None]
    """Whose kernel computes the experts on processors."""
    nodes: NotRequired[int | None]
    """NUMA nodes over which an engine's experts lie."""
    prepared: NotRequired[bool]
    """Whether its engines keep prepared weights."""
    ram_pages: NotRequired[Literal["small", "huge"] | None]
    """Pages of its RAM disk; null without one."""


class ServingFacts(TypedDict):
    """What a running engine depends on."""

    stamp: str
    form: dict[str, dict[str, str]] | None
    """null where it is no longer known; values of secrets are hidden."""
