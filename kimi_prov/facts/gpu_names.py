"""Names GPUs that have no driver yet by their PCI ids, and those that share the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.gpu_rows import (
    get_gpu_memory,
    get_gpu_name,
    list_gpu_names,
    make_gpu_row,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts


def add_known_gpus(facts: Facts, catalogue: Catalogue) -> Facts:
    """Return the facts with a row for each GPU on the bus that the catalogue has.

    If the driver reports the GPUs itself, or one of them is unknown, the facts are not changed.
    """
    nvidia = facts.get("nvidia")
    numbers = (nvidia.get("pci_ids") if nvidia else None) or []
    if facts["gpus"] or not numbers:
        return facts
    known = [_find_gpu(catalogue, device_id) for device_id in numbers]
    if None in known:
        return facts
    rows = [_make_row(index, gpu) for index, gpu in enumerate(known) if gpu is not None]
    return {**facts, "gpus": rows}


def _find_gpu(catalogue: Catalogue, device_id: str) -> Gpu | None:
    return next((row for row in catalogue.gpus if device_id in row.pci_ids), None)


def _make_row(index: int, gpu: Gpu) -> GpuFacts:
    return {
        **make_gpu_row(index, "nvidia", gpu.name, gpu.memory_bytes),
        "compute_capability": gpu.compute_capability,
        "uuid": None,
        "pci": None,
    }


def split_shared(
    facts: Facts, catalogue: Catalogue | None
) -> tuple[Sequence[GpuFacts], tuple[str, ...]]:
    """Return the GPUs with memory of their own, and the names of those that share the machine's.

    The driver shows no memory of a chip that has its processor beside it (GB10, Thor, Tegra).
    """
    arm = facts["host"].get("arch") in ("aarch64", "arm64")
    own, shared = [], []
    for row in facts["gpus"]:
        names = list_gpu_names(row)
        size = get_gpu_memory(row)
        known = next(
            (gpu for name in names if catalogue and (gpu := catalogue.find_gpu(name))), None
        )
        silent = known is None and arm and not size and row.get("vendor") == "nvidia"
        if silent or (known and known.shared_memory):
            shared.append(known.name if known else str(get_gpu_name(row)))
        else:
            own.append(row)
    return own, tuple(shared)
