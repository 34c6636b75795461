"""`kimi-prov/update/v1`: which packages of the operating system were installed."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Required


class Update(TypedDict):
    """What kimi-prov update installed on each machine.

    A host that failed, was refused or was not reached any more has only ok and detail.
    """

    schema: Literal["kimi-prov/update/v1"]
    ok: bool
    hosts: dict[str, UpdatedHost]


class UpdatedHost(TypedDict, total=False):
    """What was installed on one host."""

    ok: Required[bool]
    detail: Required[str]
    installed: list[InstalledPackage]
    """Packages with another version than before; `from` is empty where one is new."""
    driver: str | None
    """Version of the NVIDIA driver that was installed or loaded; null where it stayed."""
    left: list[LeftPackage]
    """Waiting packages that were not installed, with the reason."""
    restarted: bool
    requests_cut: int
    """Requests that had not ended when the time for them was over."""
    seconds_without_service: float
    """From the first request that was refused until the model answered again; 0 without a restart,
    and where nothing was served."""
    verified: bool
    """Whether the acceptance suite ran, and passed; false where nothing was served before."""
    restart_reasons: list[str]
    """Why the machine has to restart; empty where it need not."""
    stale_units: list[str]
    """Our units that run libraries that were replaced since they started."""


# This key is a keyword of Python.
_From = TypedDict("_From", {"from": str})


class InstalledPackage(_From):
    """A package with another version than before."""

    name: str
    to: str
    kind: str


class LeftPackage(TypedDict):
    """A package that waits."""

    name: str
    installed: str
    candidate: str
    kind: str
    why: str
