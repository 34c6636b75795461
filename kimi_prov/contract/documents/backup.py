"""`kimi-prov/backup/v1`: what `backup` saved and `restore` restored."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Count, Required


class Backup(TypedDict):
    """What kimi-prov backup or restore did.

    A host that failed has only ok and detail. Sizes in bytes.
    """

    schema: Literal["kimi-prov/backup/v1"]
    ok: bool
    hosts: dict[str, BackedUpHost]


class BackupContents(TypedDict, total=False):
    """The contents of an archive."""

    made_unix: Count
    """When it was made: seconds since 1970, by that machine's clock."""
    hostname: str
    """The host name of the machine on which it was made."""
    keys: list[str]
    """Names of the API keys whose hashes are in it, without the machine's own keys."""
    certificate_sha256: str | None
    """Fingerprint of the certificate in it; null where there is none."""
    acme_account: bool
    history: Count
    """Entries of the history."""
    page: WebUiCounts | None
    left_out: list[str]
    """What was not copied, or not restored, each with the reason."""


class BackedUpHost(BackupContents, total=False):
    """What was saved of one host, or restored."""

    ok: Required[bool]
    detail: Required[str]
    file: str
    """The archive, on the control machine."""
    bytes: Bytes
    """Of that file."""
    sha256: str
    """Of the archive before encryption."""
    encrypted_with: Literal["age", "gpg"] | None


class WebUiCounts(TypedDict):
    """The web UI's data, of the schema kimi-prov/web/v1."""

    version: str
    made_unix: int
    accounts: Count
    chats: Count
    uploads: Count
    left_out: list[str]
