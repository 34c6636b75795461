"""Plan: what is installed, from where, and which settings are made."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kimi_prov.contract.documents.form import Count, NotRequired, Required

DriverAction = Literal["none", "install", "restart", "confirm"]


class DriverPlan(TypedDict):
    """What happens to the GPUs' driver."""

    required_branch: Count | None
    action: DriverAction
    restart: bool
    version: str | None
    gpus: Count
    open_modules: bool
    packages: list[str]
    replaced: list[str]
    fabric_manager: bool
    repository: RepositoryPlan | None


class RepositoryPlan(TypedDict):
    """Where packages of the driver come from."""

    url: str
    key_url: str
    fingerprint: str
    host: str


class TuningPlan(TypedDict):
    """Settings of the kernel."""

    sysctl: dict[str, str]
    thp: str | None
    governor: str | None
    limits: LimitsPlan
    skipped: list[SkippedTuning]


class LimitsPlan(TypedDict):
    """Limits of the engine's processes."""

    memlock: str
    nofile: int


class SkippedTuning(TypedDict):
    """A setting that is left alone."""

    what: str
    reason: str


class SitePlan(TypedDict):
    """The site's mirrors and forward proxy."""

    apt_mirror: str | None
    pip_index_url: str | None
    pip_extra_index_urls: list[str]
    pip_find_links: str | None
    torch_index_url: str | None
    python_mirror: str | None
    ca_bundle: str | None
    proxy: NotRequired[ForwardProxyPlan | None]
    bundle: NotRequired[OfflineBundle]
    """Absent where the machine installs from the network."""


class OfflineBundle(TypedDict):
    """The offline bundle that the machine installs from."""

    dir: str
    """On the control machine."""
    archive: str
    """Of the distribution's packages, on the control machine."""
    signature: str
    keyring: str
    source: str
    """Where the archive is unpacked on the machine."""


class ForwardProxyPlan(TypedDict):
    """The forward proxy for downloads, without its user and password."""

    http: str | None
    https: str | None
    no_proxy: list[str]
    environment: str
    apt: str


class ControlFiles(TypedDict, total=False):
    """Files of the control machine."""

    api_keys_file: Required[str | None]
    hf_token_file: Required[str | None]
    bucket_credentials_file: str | None
    web_admin_file: str | None
    metrics_key_file: str | None


class PackageInstallation(TypedDict):
    """Environments of pinned packages, and their sources."""

    dir: str
    wheels: str
    cache: str
    uv_lock: str
    uv_dir: str
    python: BroughtPython | None
    pip_environment: dict[str, str]
    uv_environment: dict[str, str]
    run: NotRequired[list[str]]
    """The words before a command that downloads."""
    run_offline: NotRequired[list[str]]
    """The words before a command that downloads nothing."""
    indexes: list[str]
    ask_cpu_torch_index: bool
    ca_bundle: str | None


class InstallationPlan(PackageInstallation):
    """Environments that are installed, from where, and what completes them."""

    metadata: PackageMetadata | None
    cuda_home: str | None
    kt_kernels: str | None
    experts_kernel: str | None
    hub_client: HubClientPlan | None


class BroughtPython(TypedDict):
    """The bundled build of CPython; null where the machine's own is used."""

    name: str
    version: str
    build: str
    url: str
    sha256: str
    dir: str
    archive: str | None
    """Where the archive is copied to from a directory of the control machine."""
    request: str
    list: str
    downloads: dict[str, Any]
    """The list in which uv finds URL and digest."""


class PackageMetadata(TypedDict):
    """A file that completes a package."""

    path: str
    content: str


class HubClientPlan(TypedDict):
    """The tools that fetch weights."""

    lock: str
    env_dir: str
    python: str
