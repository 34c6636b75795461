"""What measuring a machine's parts is worth to a prediction: its inputs, and a narrower range.

A figure of a data sheet is no machine's: memory reads a share of its channels' rate, a GPU's units
are held back by power. The fitted parameters are shares of the sheet's figures, so a measured one
is divided by the share that such parts usually reach, and stands where the sheet's stood.

The spread of the estimator (fit.GROUP: what sets a machine apart from another that the model calls
equal) contains how far machines differ in these parts. Where one was measured that is known. What
goes off the variance is, for each measured part, the squared slope of the predicted time against
the part's speed, times the variance of that speed among like machines less that of a reading: a
machine that waits for its memory half of the time gains a quarter of what one gains that always
does. Rows cannot say it: in the catalogue, those of one source alone name a streaming test of their
machine.

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

# Of a GPU's bandwidth and dense bf16 rate by its data sheet, what `probe --measure` reads: two H100
# SXM gave 2.99 of 3.35 TB/s, and 720 and 734 of 989 TFLOP/s (power holds them back: by PyTorch the
# same product ran at 767 for a twentieth of a second, at 707 for half of one, at 671 for two).
COPY_OF_THEORY, PRODUCT_OF_THEORY = 0.89, 0.73
# Log-spread of each part's speed among machines of the same data sheet. Memory: streaming tests
# that sources report reached 0.50, 0.85 and 0.90 of their channels' rate, 0.75 is usual; the spread
# of these four is 0.26, and half of it is counted, since they are few and one is far off. Copies: a
# slot with half the lanes or of the generation before, and cards that share a switch, halve the
# rate. GPUs of one kind are all but equal: the two above differ by 2 %, power limits by more.
SPREAD: dict[Part, float] = {"memory": 0.13, "gpu_memory": 0.03, "copy": 0.25, "matrix": 0.05}
# Of a reading of a second or less.
READING_NOISE = 0.03
# However much is measured, engine, build and settings still differ: this share of GROUP's variance
# stays.
_REMAINING_SHARE = 0.4
_STEP = 1e-3


def apply_measurements(sheet: Gpus, measured: Measured) -> Gpus:
    """Put what was measured of the GPUs in place of their data sheet's figures."""
    if measured.gpu_bytes:
        sheet = replace(sheet, bandwidth_gb_s=measured.gpu_bytes / 1e9 / COPY_OF_THEORY)
    if measured.gpu_copy:
        sheet = replace(sheet, pcie_gb_s=measured.gpu_copy / 1e9)
    if measured.bf16_flops:
        sheet = replace(sheet, tflops_bf16=measured.bf16_flops / 1e12 / PRODUCT_OF_THEORY)
    return sheet


def count_known_variance(case: Case, values: Values) -> float:
    """Variance of the logarithm of a case's time that measuring its machine's parts took away."""
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
    """Give the machine with one part a little faster."""
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
