"""The page of what an engine's upgrade brings on the sheets of this repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from markup import table

import kimi_prov
from kimi_prov.catalog.loader import Catalogue
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.facts.spec import read_sheet
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

LOCKS = Path(kimi_prov.__file__).parent / "catalog" / "locks"
HEAD = (
    "sheet",
    "GPUs a layer",
    "start, s",
    "cache, tokens",
    "one request, tok/s",
    "16 together, tok/s",
    "a GPU's memory beside weights and cache",
)


def lines(folder: Path) -> Iterator[str]:
    """Give the versions, and a table of the sheets whose GPUs hold all weights.

    A figure that differs stands there for each version, in their order.
    """
    catalogue = Catalogue()
    versions = _list_versions()
    yield f"Versions: {', '.join(versions)}. A figure that they do not share stands there for each."
    yield ""
    yield from table(HEAD, list(_list_rows(folder, versions, catalogue)))


def _list_rows(
    folder: Path, versions: Sequence[str], catalogue: Catalogue
) -> Iterator[tuple[str, ...]]:
    for sheet in sorted(folder.glob("*.yml")):
        plans = [_make_plan(sheet, version, catalogue) for version in versions]
        if all(plan["engine"]["variant"] == "cuda" and _serves(plan) for plan in plans):
            columns = zip(*map(_list_figures, plans), strict=True)
            yield sheet.stem, *map(_join_figures, columns)


def _join_figures(figures: tuple[str, ...]) -> str:
    return figures[0] if len(set(figures)) == 1 else "; ".join(figures)


def _list_versions() -> list[str]:
    """List the versions that have a lock, oldest first."""
    versions = {file.name.split("-")[2] for file in LOCKS.glob("vllm-cuda-*.txt")}
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def _serves(plan: MachinePlan) -> bool:
    blocked = any(finding["severity"] == "blocker" for finding in plan["findings"])
    return not (blocked or plan["hybrid"])


def _make_plan(sheet: Path, version: str, catalogue: Catalogue) -> MachinePlan:
    asked = {"kimi_model": "kimi-k2.5", "kimi_concurrency": 16, "kimi_engine_version": version}
    settings = parse_settings({**asked, "kimi_weights_source": None}, host=sheet.stem)
    return make_plan(read_sheet(sheet, catalogue), settings, catalogue)


def _list_figures(plan: MachinePlan) -> tuple[str, ...]:
    speed, memory = plan["throughput"], plan["memory"]
    figures = (speed["load_s"], speed["single_tok_s"], speed["aggregate_tok_s"])
    start, alone, together = (f"{row['expected']:,.0f}" for row in figures)
    cache, rest = f"{memory['kv_tokens_max']:,}", format_bytes(memory["overhead_bytes_per_gpu"])
    return str(plan["parallel"]["tensor"]), start, cache, alone, together, rest
