"""`kimi-prov/web/v1`: what was saved of web UIs, or restored."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Count, Required


class WebUi(TypedDict):
    """What kimi-prov web backup or web restore did.

    A host that failed has only ok and detail. Sizes in bytes.
    """

    schema: Literal["kimi-prov/web/v1"]
    ok: bool
    hosts: dict[str, WebUiOfHost]


class WebUiContents(TypedDict, total=False):
    """The contents of a web UI's archive."""

    version: str
    """Version of the web UI that was copied."""
    made_unix: int
    """When it was copied: seconds since 1970, by that machine's clock."""
    accounts: Count
    chats: Count
    uploads: Count
    left_out: list[str]
    """Uploads whose names an archive cannot have."""


class WebUiOfHost(WebUiContents, total=False):
    """What was saved of one host's web UI, or restored."""

    ok: Required[bool]
    detail: Required[str]
    file: str
    """The archive, on the control machine."""
    bytes: Bytes
    sha256: str
