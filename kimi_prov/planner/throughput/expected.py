"""The expected speeds of layouts on GPUs, without ranges: a search compares hundreds of them.

They are those of `prediction`. Layouts of which few speeds are known count for less: by as much as
their speed beside plain tensor parallelism was estimated wrongly where both were measured, 64
requests at once on four H200 (recording h200-x4-full). A cache that ranks share: 0.99 of the speed
estimated, 0.86 measured. Stages: 0.76 and 0.56, over two hosts. Copies of attention: 1.48 and 0.65,
when each engine took fewer requests than now; nobody measured it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kimi_prov.planner.throughput import (
    make_shape,
    physics,
    plugin,
    prediction,
    stored,
    without_graphs,
)
from kimi_prov.planner.throughput.inputs import Machine, Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice, Placement, Workload
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.planner.throughput.inputs import ModelShape, Serving
    from kimi_prov.planner.throughput.parameters import Values

SHARED_CACHE_MARGIN: Final = 1.15
STAGES_MARGIN: Final = 1.36
COPIES_MARGIN: Final = 2.3


class Speeds(NamedTuple):
    """Tokens a second of one request alone, with its wait for the first one too, and of all.

    `margin`: by this factor they have to be better than those of a layout that is well known.
    """

    one: float
    one_with_wait: float
    all: float
    margin: float


def make_estimator(
    host: Host, settings: Settings, work: Workload
) -> Callable[[Budget], Speeds] | None:
    """Make the function that estimates a layout's speeds; None where none are estimated."""
    cards = prediction.make_gpus(host)
    if cards is None:
        return None
    machine = Machine(gpus=cards)
    shape = make_shape(work.model.name, work.model.architecture)
    values = stored.load_models()["gpu"].fit.values

    def estimate(budget: Budget) -> Speeds:
        load = prediction.make_serving(settings, work.model, budget, work.weights_format)
        if settings.hosts_per_model > 1:
            load, _ = prediction.add_hosts(host, settings, load)
        running = prediction.count_running(settings.concurrency, load, budget.instances)
        one = _estimate_decode(shape, machine, load.alone, values)
        prompt = physics.estimate_prefill(shape, machine, load, values).total * load.input_tokens
        return Speeds(
            one,
            load.output_tokens / (prompt + load.output_tokens / one),
            _estimate_together(shape, machine, load, values, (running, budget.instances)),
            _find_margin(load),
        )

    return estimate


def estimate_outside_gpus(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
) -> Speeds | None:
    """Estimate an engine with weights in host memory; None where no speed is estimated.

    kt-kernel's slices on several nodes count as on one: nobody measured what the others gain.
    """
    if prediction.find_reason_for_none(model, choice, budget) is not None:
        return None
    machine, _ = prediction.make_machine(host, choice, placement)
    if machine is None:
        return None
    load = prediction.make_load(settings, model, choice, budget, placement, in_memory=False)
    if settings.hosts_per_model > 1:
        load, _ = prediction.add_hosts(host, settings, load)
    layout = prediction.make_plugin_layout(host, model, choice, machine.cpu, placement)
    shape = make_shape(model.name, model.architecture)
    estimate = prediction.make_speed_estimator(shape, machine, layout)
    alone, speed = estimate(load.alone), estimate(load).decode_tok_s
    running = prediction.count_running(settings.concurrency, load, budget.instances)
    one = alone.decode_tok_s.expected
    together = prediction.add_engines(estimate, load, speed, running, budget.instances)
    return Speeds(
        one,
        load.output_tokens / (alone.single_ttft_s.expected + load.output_tokens / one),
        together.expected,
        plugin.compare_with_one_node(shape, layout, load) if layout else 1.0,
    )


def _estimate_together(
    shape: ModelShape,
    machine: Machine,
    load: Serving,
    values: Values,
    running: tuple[int, int],
) -> float:
    """Estimate the speed of all requests that run on so many engines, some with one less."""
    requests, engines = running
    least, more = divmod(requests, engines)
    if more == 0 or least == 0:
        return _estimate_decode(shape, machine, load, values) * requests
    fewer = replace(load, concurrency=least)
    return more * (least + 1) * _estimate_decode(shape, machine, load, values) + (
        engines - more
    ) * least * _estimate_decode(shape, machine, fewer, values)


def _estimate_decode(
    shape: ModelShape, machine: Machine, serving: Serving, values: Values
) -> float:
    speed = 1 / physics.estimate_decode(shape, machine, serving, values).total
    if serving.without_graphs:
        speed = without_graphs.slow_down(Range(speed, speed, speed), shape.layers).expected
    return speed


def _find_margin(serving: Serving) -> float:
    margin = 1.0
    if serving.cache_ranks > 1:
        margin *= SHARED_CACHE_MARGIN
    if serving.stages > 1:
        margin *= STAGES_MARGIN
    if serving.data_parallel > 1:
        margin *= COPIES_MARGIN
    return margin
