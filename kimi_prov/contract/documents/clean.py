"""`kimi-prov/clean/v1`: folders that nothing uses."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Required


class Clean(TypedDict):
    """What kimi-prov clean found and freed.

    A host that failed has only ok and detail. Sizes in bytes on the disk.
    """

    schema: Literal["kimi-prov/clean/v1"]
    ok: bool
    hosts: dict[str, CleanedHost]


class CleanedHost(TypedDict, total=False):
    """What was found and freed on one host."""

    ok: Required[bool]
    detail: str
    items: list[CleanItem]
    bytes: Bytes
    removed: bool
    """false: it would be removed."""
    keeps: list[str]
    """What can still be restored."""


CleanKind = Literal["environment", "python", "weights", "prepared"]


class CleanItem(TypedDict):
    """A folder, or a file that was put aside, that nothing uses."""

    kind: CleanKind
    path: str
    bytes: Bytes
    of: str
    """Its description."""
