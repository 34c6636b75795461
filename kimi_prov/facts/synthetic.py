"""Synthetic facts of machines, made from recorded ones and labelled as synthetic."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.gpu_rows import make_gpu_row

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts


@dataclass(frozen=True)
class Card:
    """The values that another GPU would report."""

    name: str
    memory_mib: int
    power_w: float
    compute_capability: str


H100 = Card("NVIDIA H100 80GB HBM3", 81559, 700.0, "9.0")


def make_variant(
    facts: Facts,
    name: str,
    *,
    card: Card | None = None,
    driver: str | None = None,
    cuda: str | None = None,
) -> Facts:
    """Return a copy of the facts with another card or driver.

    `origin` of the result says that it was made, and from what; `origins` names each changed
    value.
    """
    variant = copy.deepcopy(facts)
    origin = facts.get("origin")
    source = f"{origin.get('kind')} {origin.get('name')}" if origin else "facts of no known origin"
    changed = ", ".join(
        word for word in (card and card.name, driver and f"driver {driver}") if word
    )
    variant["origin"] = {
        "kind": "made",
        "name": name,
        "detail": f"made from {source}: {changed}",
    }
    origins = variant.setdefault("origins", {})
    for index, gpu in enumerate(variant["gpus"] if card else []):
        variant["gpus"][index] = _change_gpu(gpu, card)
        for key in ("model", "memory_bytes", "power_limit_w", "compute_capability"):
            origins[f"gpus[{index}].{key}"] = "made"
    nvidia = variant.get("nvidia")
    if driver and nvidia:
        nvidia["driver_loaded"] = driver
        if nvidia.get("driver_installed"):
            nvidia["driver_installed"] = driver
        nvidia["cuda"] = cuda
        origins["nvidia.driver_loaded"] = origins["nvidia.cuda"] = "made"
    return variant


def _change_gpu(gpu: GpuFacts, card: Card | None) -> GpuFacts:
    if card is None:
        return gpu
    return {
        **gpu,
        **make_gpu_row(gpu["index"], gpu["vendor"], card.name, card.memory_mib << 20),
        "power_limit_w": card.power_w,
        "power_limit_max_w": card.power_w,
        "compute_capability": card.compute_capability,
    }
