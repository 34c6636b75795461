"""How measurements of a machine's parts improve a prediction: better inputs and narrower ranges.

No machine reaches the figures of its data sheet: memory reads only a share of its channels' rate,
and power limits slow a GPU's units. The fitted parameters are shares of the data sheet's figures.
So a measured figure is divided by the share that such parts usually reach, and replaces the data
sheet's.

The estimator's spread (fit.GROUP_SPREAD: between machines that are equal to the model) includes the
differences of these parts, which a measurement removes. Each measured part reduces the variance by
the squared slope of the predicted time by the part's speed, times the variance of that speed among
equal machines without that of a reading. So a machine that waits for its memory half of the time
gains a quarter of what a machine gains that always waits for it. The catalogue's rows cannot show
this: those of only one source name a streaming test of their machine.

Decides: what a measured part of a machine counts for, and a bench of it.
Held by: tests/unit/commands/check/test_check_measured.py,
  tests/unit/commands/check/test_check_bench.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import fit as fitting

if TYPE_CHECKING:
    from kimi_prov.facts.host import Measured
    from kimi_prov.planner.throughput.cases import Case
    from kimi_prov.planner.throughput.inputs import Gpus, Machine, Part
    from kimi_prov.planner.throughput.parameters import Values

# The shares of a data sheet's GPU bandwidth and dense bf16 rate that `probe --measure` reads: two
# H100 SXM gave 2.99 of 3.35 TB/s, and 720 and 734 of 989 TFLOP/s (limited by power: in PyTorch the
# same product ran at 767 for 0.05 s, at 707 for 0.5 s, at 671 for 2 s).
COPY_OF_THEORY, PRODUCT_OF_THEORY = 0.89, 0.73
# Log-spread of each part's speed among machines of the same data sheet. Memory: streaming tests
# that sources report reached 0.50, 0.85 and 0.90 of their channels' rate, and 0.75 is usual. The
# spread of these four is 0.26; half of it is counted, because they are few and one is far off.
# Copies: the rate halves in a slot with half the lanes or of the previous generation, and where
# cards share a switch. GPUs of one kind are nearly equal: the two above differ by 2 %, and power
# limits make a larger difference.
SPREAD: dict[Part, float] = {"memory": 0.13, "gpu_memory": 0.03, "copy": 0.25, "matrix": 0.05}
# Log-spread of a reading that takes at most a second.
READING_NOISE = 0.03
# At least this share of the variance of GROUP_SPREAD stays, because engines, builds and settings
# differ however much is measured.
_REMAINING_SHARE = 0.4
_STEP = 1e-3


def apply_measurements(sheet: Gpus, measured: Measured) -> Gpus:
    """Replace the GPUs' figures from the data sheet by those that were measured."""
    if measured.gpu_bytes:
        sheet = replace(sheet, bandwidth_gb_s=measured.gpu_bytes / 1e9 / COPY_OF_THEORY)
    if measured.gpu_copy:
        sheet = replace(sheet, pcie_gb_s=measured.gpu_copy / 1e9)
    if measured.bf16_flops:
        sheet = replace(sheet, tflops_bf16=measured.bf16_flops / 1e12 / PRODUCT_OF_THEORY)
    return sheet


def count_known_variance(case: Case, values: Values) -> float:
    """Compute how much measured parts reduce the variance of the logarithm of a case's time."""
    parts = case.machine.measured & SPREAD.keys()
    if not parts:
        return 0.0
    base = math.log(fitting.predict_seconds(case, values))
    variance = 0.0
    for part in parts:
        faster = replace(case, machine=_make_faster(case.machine, part))
        slope = (math.log(fitting.predict_seconds(faster, values)) - base) / math.log1p(_STEP)
        variance += slope**2 * max(0.0, SPREAD[part] ** 2 - READING_NOISE**2)
    return min(variance, (1 - _REMAINING_SHARE) * fitting.GROUP_SPREAD**2)


def _make_faster(machine: Machine, part: Part) -> Machine:
    """Return the machine with one part a little faster."""
    by = 1 + _STEP
    cpu, gpus = machine.cpu, machine.gpus
    if part == "memory" and cpu is not None:
        return replace(
            machine,
            cpu=replace(
                cpu,
                bandwidth_gb_s=cpu.bandwidth_gb_s * by,
                measured_gb_s=cpu.measured_gb_s * by if cpu.measured_gb_s else None,
            ),
        )
    if gpus is None or part == "memory":
        return machine
    if part == "gpu_memory":
        return replace(machine, gpus=replace(gpus, bandwidth_gb_s=gpus.bandwidth_gb_s * by))
    if part == "copy":
        return replace(machine, gpus=replace(gpus, pcie_gb_s=gpus.pcie_gb_s * by))
    return replace(machine, gpus=replace(gpus, tflops_bf16=gpus.tflops * by))
