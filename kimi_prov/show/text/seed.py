"""The document of `weights seed` as text, and the cost of storing the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes, format_file_count

if TYPE_CHECKING:
    from kimi_prov.contract.documents.seed import Seed, StorageCost


def format_text(document: Seed) -> str:
    """Write what was copied, and the line for an inventory."""
    if not document["complete"]:
        return f"{document['bucket']}: {format_bytes(document['missing_bytes'])} would be copied"
    copied = document["uploaded_bytes"]
    took = f" in {format_duration(document['seconds'])}" if copied else ""
    weights = f"{format_file_count(document['files'])}, {format_bytes(document['bytes'])}"
    return (
        f"{document['bucket']}: {weights}, verified against {document['source']} at "
        f"{document['revision']}; {format_bytes(copied)} copied{took}\n"
        f"kimi_weights_source: {document['bucket']}"
    )


def describe_storage_cost(cost: StorageCost | None) -> str:
    """Describe the cost of storing the weights, and what it leaves out."""
    if cost is None:
        return "storing it: no price is known of this provider"
    return (
        f"storing it: about ${cost['usd_per_month']:.2f} a month (estimated: "
        f"${cost['usd_per_gb_month']:.3f} a GB and month, {cost['basis']}); requests are cents, "
        "and reading it from another region or cloud costs more than all of this"
    )
