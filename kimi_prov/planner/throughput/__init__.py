"""Speed estimates with their ranges: estimate(model, machine, serving) -> Estimate.

Decides: speeds (the models of machines behind them).
"""

from kimi_prov.planner.throughput.estimate import estimate, times
from kimi_prov.planner.throughput.formats import uniform, weight_format
from kimi_prov.planner.throughput.inputs import (
    Basis,
    Cpu,
    EngineFamily,
    Estimate,
    Gpus,
    Machine,
    ModelShape,
    Range,
    Serving,
    WeightFormat,
)
from kimi_prov.planner.throughput.subjects import shape_of

__all__ = [
    "Basis",
    "Cpu",
    "EngineFamily",
    "Estimate",
    "Gpus",
    "Machine",
    "ModelShape",
    "Range",
    "Serving",
    "WeightFormat",
    "estimate",
    "shape_of",
    "times",
    "uniform",
    "weight_format",
]
