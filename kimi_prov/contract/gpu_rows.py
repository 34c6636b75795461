"""The name and the memory of a GPU, which facts have under two keys each.

Readers of the first facts know a GPU's memory as `memory_total_bytes` and its name as `name_raw`:
both are still written, and they are read where old facts have nothing else.

Decides: under which keys facts have the name and the memory of a GPU.
Held by: tests/unit/contract/test_gpu_rows.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.gpus import GpuFacts


def make_gpu_row(
    index: int,
    vendor: str,
    name: str | None,
    memory_bytes: int | None,
    source_name: str | None = None,
) -> GpuFacts:
    """Make a GPU's row with the keys of all sources; `source_name`: the name in the source."""
    return {
        "index": index,
        "vendor": vendor,
        "model": name,
        "name_raw": source_name or name,
        "memory_total_bytes": memory_bytes,
        "memory_bytes": memory_bytes,
    }


def get_gpu_memory(row: GpuFacts) -> int | None:
    """Return the memory of a GPU in bytes; None where the facts do not have it."""
    return row.get("memory_bytes") or row.get("memory_total_bytes")


def get_gpu_name(row: GpuFacts) -> str | None:
    """Return the name of a GPU; None where the facts do not have it."""
    return row.get("model") or row.get("name_raw")


def list_gpu_names(row: GpuFacts) -> list[str]:
    """List the names of a GPU for a search, the likelier first."""
    return [name for name in (row.get("model"), row.get("name_raw")) if name]
