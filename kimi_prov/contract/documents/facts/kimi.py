"""Facts: what of ours is on the machine."""

from __future__ import annotations

from typing import Any, TypedDict

from kimi_prov.contract.documents.form import Whole


class KimiFacts(TypedDict, total=False):
    """What of ours is on the machine."""

    plan_sha256: str | None
    target_sha256: str | None
    engine_envs: list[str]
    tools: list[str]
    """Environments of tools that were made to the end."""
    pythons: list[str]
    """Interpreters that were brought."""
    engine_pythons: dict[str, str]
    """Environments whose interpreter was brought, and that interpreter's name."""
    engine_link: str | None
    kept_envs: list[str]
    """Environments of the versions that rollback can put back."""
    switch_open: bool
    """Whether a switch to another version was begun and has not ended."""
    models: list[ModelFacts]
    models_verified: list[str]
    ram_disk_mounted: bool | None
    user: bool | None
    proxy_user: bool | None
    acme_user: bool | None
    files: dict[str, FileFacts | None]
    """Files that roles write, by path; null where there is no regular file. A role writes what
    differs."""
    accounts: dict[str, AccountFacts | None]
    """Accounts of our names, whoever made them."""
    web_envs: list[str]
    """Environments of the page that were made to the end."""
    web_pythons: dict[str, str]
    """Those whose interpreter was brought, and that interpreter's name."""
    web_link: str | None
    """The one that is in use."""
    groups: dict[str, int | None]
    """Groups of our names and their numbers; null where there is none."""
    node_exporter_ours: bool
    """Whether the distribution's node exporter came with this product."""
    forward_proxy: bool
    """Whether an apply wrote down the site's proxy."""
    before_kept: bool | None
    before: dict[str, Any] | None
    """What the machine was before the first apply, as `destroy` puts it back."""
    units: dict[str, str | None]
    services: dict[str, ServiceFacts]
    """Services that packages of ours bring along, as they are now."""
    serving: dict[str, ServingFacts]
    """What each running engine depends on, by its unit."""
    driver: dict[str, Any] | None
    """What an earlier apply did to the driver."""
    nccl: dict[str, Any] | None
    """What an earlier apply found of NCCL."""


class ModelFacts(TypedDict):
    """A model on the disk."""

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
    """An account of our names."""

    uid: int
    gid: int
    home: str
    shell: str
    processes: list[str]
    """Names of its processes that no unit of ours runs."""


class ServingFacts(TypedDict):
    """What a running engine depends on."""

    stamp: str
    form: dict[str, dict[str, str]] | None
    """null where it is not known any more; values of secrets are hidden."""
