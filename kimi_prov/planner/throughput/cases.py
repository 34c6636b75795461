"""A case: one speed on one machine, measured or to be predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.inputs import Machine, ModelShape, Serving

Quantity = Literal["decode", "prefill", "first token", "load", "draft"]
Kind = Literal["cpu", "hybrid", "gpu-single", "gpu-batched"]

# Log-spread of one reading, by the row's confidence.
NOISE = {"high": 0.08, "medium": 0.15, "low": 0.3}


def find_kind(machine: Machine, concurrency: int) -> Kind:
    """Name the class whose errors apply."""
    if machine.cpu is None:
        return "gpu-batched" if concurrency > 1 else "gpu-single"
    return "hybrid" if machine.gpus else "cpu"


@dataclass(frozen=True)
class Case:
    """One speed with its model, machine and load. `value`: as measured, tokens a second or seconds.

    A draft's is how many times as many tokens a second it gave. `author`: who measured it.
    `group` is equal for rows of one machine and build. `end_to_end`: the prompt's time is
    included. `prompts`: how many prompts a prefill figure counts together.
    """

    id: str
    author: str
    group: str
    kind: Kind
    quantity: Quantity
    model: ModelShape
    machine: Machine
    serving: Serving
    value: float
    noise: float
    end_to_end: bool = False
    prompts: float = 1.0
