"""Names GPUs that have no driver yet by their PCI ids, so that they can be planned for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.gpu_rows import make_gpu_row

if TYPE_CHECKING:
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
