"""`kimi-prov/seed/v1`: the weights that were copied into a bucket."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Amount, Bytes, Count


class Seed(TypedDict):
    """What kimi-prov weights seed copied into a bucket.

    Sizes in bytes. complete: every file of the repository is there and verified, and the manifest
    beside them.
    """

    schema: Literal["kimi-prov/seed/v1"]
    ok: bool
    source: str
    revision: str | None
    bucket: str
    files: Count
    bytes: Bytes
    missing_bytes: Bytes
    """Before this run."""
    uploaded_bytes: Bytes
    seconds: Amount
    complete: bool
    storage: StorageCost | None


class StorageCost(TypedDict):
    """Estimated; null where no price of the provider is known."""

    usd_per_month: float
    usd_per_gb_month: float
    estimated: Literal[True]
    basis: str
