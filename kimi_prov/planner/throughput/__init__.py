"""Speed estimates with their ranges: estimate_speed(model, machine, serving) -> Estimate.

Decides: speeds (the models of machines behind them).
"""

from kimi_prov.planner.throughput.estimate import estimate_speed, scale_range
from kimi_prov.planner.throughput.formats import find_weight_format, make_uniform_format
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
from kimi_prov.planner.throughput.subjects import make_shape

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
    "estimate_speed",
    "find_weight_format",
    "make_shape",
    "make_uniform_format",
    "scale_range",
]
