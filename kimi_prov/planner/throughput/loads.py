"""The seconds in which an engine brings weights from memory into GPUs, and their score.

The rate is a property of the engine's version, its loader, the format and the layout: the
catalogue's engines.yaml has ways of loading and measured loads. A way with measured loads goes at
their geometric mean. One without goes at what a worker alone was measured to do, less what whole
loads of other ways fell short of their workers alone; its range is wider.

Decides: the time to load weights into GPUs, and its score.
Held by: tests/unit/planner/throughput/test_loads.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.throughput import physics, subjects
from kimi_prov.planner.throughput.calibrate import Prediction
from kimi_prov.planner.throughput.cases import NOISE, Case, find_kind
from kimi_prov.planner.throughput.formats import find_weight_format
from kimi_prov.planner.throughput.inputs import Machine, Range, Serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.engines import LoadTime, LoadWay
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.throughput.inputs import Gpus, ModelShape

# By these factors a load may be longer or shorter: of a way with measured loads, whose rates lie
# so far from their mean, and of one whose worker alone was measured.
_SPREAD, _UNMEASURED_SPREAD = 1.6, 2.5
_DEFAULT_FORMAT = "auto"


@dataclass(frozen=True)
class Rate:
    """The GB a second of one worker; by `spread` the time may be longer or shorter."""

    gb_s: float
    spread: float


def estimate_into_gpus(
    model: ModelShape, gpus: Gpus, serving: Serving, cases: Sequence[Case] | None = None
) -> Range:
    """Estimate the seconds of a load; `cases` are measured loads in place of the catalogue's."""
    way = find_way(serving)
    rate = find_rate(way, read_cases() if cases is None else cases)
    spread = rate.spread
    if serving.load_format not in way.load_formats:
        spread = max(spread, _UNMEASURED_SPREAD)
    seconds = count_gb(model, gpus, serving, way) / rate.gb_s
    return Range(seconds / spread, seconds, seconds * spread)


def find_way(serving: Serving) -> LoadWay:
    """Find the way in which an engine's version loads; a loader without one counts as the default.

    Engines other than vLLM have none of their own on GPUs alone: they count as vLLM does.
    """
    catalogue = load_catalogue()
    default = catalogue.engine("vllm", "cuda")
    version = serving.version or (default.version if default else "0")
    packed = serving.weights.integers
    for load_format in (serving.load_format, _DEFAULT_FORMAT):
        for way in catalogue.load_ways:
            if way.covers(version, load_format, packed=packed):
                return way
    raise LookupError(f"the catalogue has no way for vLLM {version}")


def find_rate(way: LoadWay, cases: Sequence[Case]) -> Rate:
    """Find the rate of a way from measured loads, else from its worker alone."""
    own = [measure_gb_s(case, way) for case in cases if find_way(case.serving).name == way.name]
    if own:
        return Rate(_compute_mean(own), _SPREAD)
    short = _measure_shortfall(cases)
    return Rate(way.gb_s * short, _UNMEASURED_SPREAD)


def _measure_shortfall(cases: Sequence[Case]) -> float:
    """Compute what whole loads reached of the rate of one worker alone."""
    ways = [(find_way(case.serving), case) for case in cases]
    ratios = [measure_gb_s(case, way) / way.gb_s for way, case in ways]
    return _compute_mean(ratios) if ratios else 1.0


def measure_gb_s(case: Case, way: LoadWay) -> float:
    """Compute the GB a second at which one worker went in a measured load."""
    return count_gb(case.model, _get_gpus(case), case.serving, way) / case.value


def _get_gpus(case: Case) -> Gpus:
    if case.machine.gpus is None:
        raise ValueError(f"{case.id}: a load into GPUs that the catalogue does not know")
    return case.machine.gpus


def _compute_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def count_gb(model: ModelShape, gpus: Gpus, serving: Serving, way: LoadWay) -> float:
    """Count the GB that one worker goes through in a way."""
    if way.counted == "worker":
        return count_worker_gb(model, gpus, serving)
    ranks = physics.count_ranks(gpus, serving) * serving.data_parallel * serving.stages
    return count_checkpoint_gb(model, serving) / ranks


def count_worker_gb(model: ModelShape, gpus: Gpus, serving: Serving) -> float:
    """Count the GB that the worker of one GPU reads when it loads its stage of a model.

    It reads all weights but the routed experts, and of these the ones that its GPU gets, where they
    stay whole. Of slices it reads more than it keeps. Packed integers are turned over before they
    are cut, all of them by every worker (RoutedExperts.weight_loader of vLLM 0.19.1 to 0.33.0 for
    Marlin; other kernels are counted in the same way). Of other formats the down projection is cut
    across its rows, so that all of its pages are read (found in the code, not timed).
    """
    ranks = physics.count_ranks(gpus, serving) * serving.data_parallel
    share = 1.0 if serving.weights.integers else (1 + 2 / ranks) / 3
    if serving.experts_whole:
        share = 1 / ranks
    routed = _count_routed_weights(model) * serving.weights.gpu_expert / 1e9
    rest = count_checkpoint_gb(model, serving) - routed
    return (rest + share * routed) / serving.stages


def count_checkpoint_gb(model: ModelShape, serving: Serving) -> float:
    """Count the GB that the engine reads when it starts."""
    routed = _count_routed_weights(model)
    rest = (model.total_params - routed) * serving.weights.rest
    return (routed * serving.weights.gpu_expert + rest) / 1e9


def _count_routed_weights(model: ModelShape) -> float:
    return model.moe_layers * model.experts * model.params_per_expert


def read_cases() -> tuple[Case, ...]:
    """Read the catalogue's measured loads."""
    return _make_cases(load_catalogue())


@cache
def _make_cases(catalogue: Catalogue) -> tuple[Case, ...]:
    return tuple(_make_case(row, catalogue) for row in catalogue.load_times)


def _make_case(row: LoadTime, catalogue: Catalogue) -> Case:
    architecture = catalogue.model(row.model).architecture
    if row.layers is not None:
        architecture = replace(architecture, layers=row.layers)
    machine = Machine(gpus=subjects.find_gpus(row.gpu, row.gpus))
    serving = Serving(
        engine="vllm",
        weights=find_weight_format(row.weights),
        tensor_parallel=row.tensor,
        data_parallel=row.data,
        experts_whole=row.expert,
        weights_in_memory=True,
        version=row.version,
        load_format=row.load_format,
    )
    return Case(
        id=row.id,
        author=row.author,
        group=row.source,
        kind=find_kind(machine, 1),
        quantity="load",
        model=subjects.make_shape(row.model, architecture),
        machine=machine,
        serving=serving,
        value=row.seconds,
        noise=NOISE[row.confidence],
    )


def predict_from_other_authors() -> list[Prediction]:
    """Predict each measured load from the loads of all other authors."""
    cases = read_cases()
    predictions = []
    for case in cases:
        others = [other for other in cases if other.author != case.author]
        span = estimate_into_gpus(case.model, _get_gpus(case), case.serving, others)
        predictions.append(Prediction(case, span.expected, span.low, span.high))
    return predictions
