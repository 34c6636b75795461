"""The plan's speeds: the estimator's inputs, made from a machine's facts and the catalogue.

Decides: speeds.
Held by: tests/unit/planner/throughput/test_speed_score.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.catalog import model_bytes
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.node_kinds import list_own_nodes
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.engine import expert_backend, sglang, speculative
from kimi_prov.planner.engine.prepared import LOAD_FORMAT
from kimi_prov.planner.engine.vllm import find_graphs_off_flag
from kimi_prov.planner.settings.flag_names import VLLM, parse_int
from kimi_prov.planner.throughput.speed_document import make_empty_document, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.catalog.models import Draft, Model
    from kimi_prov.contract.documents.plan.estimates import ThroughputPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice, Placement
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.planner.throughput import Cpu, Estimate, Gpus, Machine, Serving
    from kimi_prov.planner.throughput.inputs import EngineFamily, ModelShape, Part, Range
    from kimi_prov.planner.throughput.plugin import Layout

_GB = 1e9
# Assumed where neither the machine nor the catalogue names a processor's memory.
_UNKNOWN_SOCKET_GB_S = 200.0


class Beside(NamedTuple):
    """What counts beside engine and memory.

    `in_memory`: a RAM disk holds the files at the start. `draft`: the one that guesses tokens.
    """

    in_memory: bool
    draft: Draft | None = None


def make_speed_estimator(
    shape: ModelShape, machine: Machine, layout: Layout | None
) -> Callable[[Serving], Estimate]:
    """Make the estimator of loads on the machine. `layout`: the experts' outside of GPUs."""
    from kimi_prov.planner.throughput import estimate_speed, hosts, plugin  # noqa: PLC0415

    def estimate(load: Serving) -> Estimate:
        if layout is not None:
            one = plugin.estimate_speed(shape, layout, load, machine.disk_gb_s)
        else:
            one = estimate_speed(shape, machine, load)
        return one if machine.gpus else hosts.divide_over_hosts(one, shape, load)

    return estimate


def make_document(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    beside: Beside,
) -> ThroughputPlan:
    """Make the plan's `throughput`."""
    speeds = make_speeds(host, settings, model, choice, budget, placement, beside)
    return speeds(settings.concurrency)


def make_speeds(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    beside: Beside,
) -> Callable[[int], ThroughputPlan]:
    """Make the function that returns `throughput` for a number of requests at once.

    What does not depend on their number is made once, one request alone included.
    """
    reason = find_reason_for_none(model, choice, budget)
    if reason is not None:
        return lambda many: make_empty_document(many, f"not estimated: {reason}")
    # These imports take a quarter of a second, which plans of lab models do not need.
    from kimi_prov.planner.throughput import anchor, make_shape  # noqa: PLC0415

    machine, assumed = make_machine(host, choice, placement)
    if machine is None:
        unknown = f"not estimated: {assumed}"
        return lambda many: make_empty_document(many, unknown)
    planned = make_load(settings, model, choice, budget, placement, in_memory=beside.in_memory)
    if settings.hosts_per_model > 1:
        planned, unknown_link = add_hosts(host, settings, planned)
        assumed = "; ".join(filter(None, (assumed, unknown_link))) or None
    layout = make_plugin_layout(host, model, choice, machine.cpu, placement)
    shape = make_shape(model.name, model.architecture)
    speak = make_speed_estimator(shape, machine, layout)
    readings = anchor.read_readings(host.facts)
    plain = anchor.anchor_estimator(speak, readings, budget.instances)
    held = _add_draft(plain, shape, machine, settings, beside.draft)
    alone = held(planned.alone)

    def make(many: int) -> ThroughputPlan:
        serving = replace(planned, concurrency=-(-many // budget.instances))
        estimate = held(serving)
        basis = [
            estimate.basis,
            *_list_qualifications(machine, serving, layout),
            *_describe_gain(shape, machine, serving, settings, beside.draft),
        ]
        running = count_running(many, serving, budget.instances)
        together = add_engines(held, serving, estimate.decode_tok_s, running, budget.instances)
        plan = write_document(many, running, serving, estimate, alone, together)
        plan |= {"basis": "; ".join(basis), "assumed": assumed}
        anchors = anchor.compare_readings(speak, serving, readings, budget.instances)
        if anchors:
            plan["anchors"] = anchors
        return plan

    return make


def add_engines(
    estimate: Callable[[Serving], Estimate],
    serving: Serving,
    speed: Range,
    running: int,
    engines: int,
) -> Range:
    """Add up all engines; some may run one request less than those whose `speed` is known."""
    from kimi_prov.planner.throughput import scale_range  # noqa: PLC0415
    from kimi_prov.planner.throughput.inputs import Range  # noqa: PLC0415

    least, fuller = divmod(running, engines)
    if not fuller:
        return scale_range(speed, running)
    full = scale_range(speed, fuller * (least + 1))
    if not least:
        return full
    fewer = replace(serving, concurrency=least)
    rest = scale_range(estimate(fewer).decode_tok_s, (engines - fuller) * least)
    return Range(full.low + rest.low, full.expected + rest.expected, full.high + rest.high)


def estimate_draft(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    draft: Draft,
) -> Range | None:
    """Estimate how many times as fast a draft makes the load; None where that is not known."""
    if find_reason_for_none(model, choice, budget) is not None:
        return None
    from kimi_prov.planner.throughput import make_shape  # noqa: PLC0415

    machine, _ = make_machine(host, choice, placement)
    if machine is None:
        return None
    serving = make_load(settings, model, choice, budget, placement, in_memory=False)
    if settings.hosts_per_model > 1:
        serving, _ = add_hosts(host, settings, serving)
    return _estimate_gain(
        make_shape(model.name, model.architecture), machine, serving, settings, draft
    )


def _estimate_gain(
    shape: ModelShape, machine: Machine, serving: Serving, settings: Settings, draft: Draft | None
) -> Range | None:
    """Estimate a draft's gain on GPUs that hold all weights; None without acceptance."""
    if draft is None or machine.cpu is not None:
        return None
    from kimi_prov.planner.throughput import drafts  # noqa: PLC0415

    tokens = speculative.count_guesses(settings, draft)
    guessing = drafts.make_guessing(draft, tokens, settings.workload)
    return drafts.estimate_gain(shape, machine, serving, guessing) if guessing else None


def _add_draft(
    held: Callable[[Serving], Estimate],
    shape: ModelShape,
    machine: Machine,
    settings: Settings,
    draft: Draft | None,
) -> Callable[[Serving], Estimate]:
    """Return the estimator with a draft's gain in its tokens a second."""
    if draft is None:
        return held
    from kimi_prov.planner.throughput import drafts  # noqa: PLC0415

    def estimate(load: Serving) -> Estimate:
        one, gain = held(load), _estimate_gain(shape, machine, load, settings, draft)
        if gain is None:
            return one
        return replace(
            one,
            decode_tok_s=drafts.multiply_ranges(one.decode_tok_s, gain),
            aggregate_tok_s=drafts.multiply_ranges(one.aggregate_tok_s, gain),
        )

    return estimate


def _describe_gain(
    shape: ModelShape, machine: Machine, serving: Serving, settings: Settings, draft: Draft | None
) -> Iterator[str]:
    if draft is None:
        return
    gain = _estimate_gain(shape, machine, serving, settings, draft)
    if gain is None:
        yield f"without a gain of {draft.name}, of which no acceptance is published"
    else:
        yield (
            f"with {draft.name}, {gain.low:.2g} to {gain.high:.2g} times as fast by its published "
            f"acceptance ({settings.workload})"
        )


def find_reason_for_none(model: Model, choice: EngineChoice, budget: Budget) -> str | None:
    """Say why no speed is estimated; None where one is."""
    if model.is_synthetic:
        return f"a model of {'random' if model.random_weights else 'made'} weights"
    if budget.kv_tokens <= 0:
        return "it does not fit"
    served = choice.experts is not None or choice.weights_format in choice.engine.formats
    return None if served or budget.gpu else "the engine does not serve these weights"


def find_alternative(host: Host, model: Model) -> tuple[str, str] | None:
    """Name a GGUF file that memory holds and its speed with ik_llama.cpp, without any GPU.

    It is the largest file that leaves a tenth of the memory free. None where there is no such file.
    """
    from kimi_prov.planner.throughput import (  # noqa: PLC0415
        Machine,
        Serving,
        estimate_speed,
        make_shape,
        make_uniform_format,
    )

    room = (host.memory_bytes - host.reserve_bytes) * 0.9
    files = sorted((g for g in model.gguf if g.size_bytes <= room), key=lambda g: g.size_bytes)
    cpu, _ = make_cpu(host)
    if not files or cpu is None:
        return None
    best = files[-1]
    shape = make_shape(model.name, model.architecture)
    weights = make_uniform_format(best.size_bytes / shape.total_params)
    serving = Serving(engine="ik_llama.cpp", weights=weights, input_tokens=2048)
    speed = estimate_speed(shape, Machine(cpu=cpu), serving).decode_tok_s
    label = f"{best.kind}, {format_bytes(best.size_bytes)}"
    return label, f"{speed.low:.1f} to {speed.high:.1f} tokens/s for one request (estimated)"


def make_serving(  # noqa: PLR0913  (all that an estimate needs of a plan)
    settings: Settings,
    model: Model,
    budget: Budget,
    weights: str,
    *,
    engine: EngineFamily = "vllm",
    version: str | None = None,
    method: str | None = None,
    threads: int | None = None,
    in_memory: bool = False,
) -> Serving:
    """Make the load of one instance, of `weights` by their format's name for the estimator.

    `method` and `threads` are kt-kernel's; `in_memory`: a RAM disk holds the files at the start.
    """
    from kimi_prov.planner.throughput import Serving, find_weight_format  # noqa: PLC0415

    gpu = budget.gpu
    prompt, answer = _choose_lengths(settings, budget.context)
    return Serving(
        engine=engine,
        weights=find_weight_format(weights),
        concurrency=-(-settings.concurrency // budget.instances),
        input_tokens=prompt,
        output_tokens=answer,
        tensor_parallel=gpu.ranks if gpu else None,
        data_parallel=gpu.data if gpu else 1,
        stages=gpu.pipeline if gpu else 1,
        cache_ranks=gpu.decode_context if gpu else 1,
        experts_whole=gpu is not None and gpu.expert_parallel,
        kv_dtype_bytes=1 if budget.kv_dtype == "fp8" else 2,
        kv_tokens_max=budget.kv_tokens,
        requests_max=_count_held_requests(settings, budget, prompt + answer),
        # In the estimator, a hybrid always has experts in memory.
        gpu_experts=min(gpu.experts or 0, model.architecture.experts - 1) if gpu else 0,
        cpu_threads=threads,
        weights_in_memory=in_memory,
        stream_prefill_from=sglang.choose_gpu_prefill_threshold(method),
        stream_chunk=gpu.batched_tokens if gpu else 1,
        without_graphs=find_graphs_off_flag(settings.engine_args) is not None,
        version=version,
        load_format=str(settings.engine_args.get(VLLM.load_format) or "auto"),
    )


def make_load(
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    *,
    in_memory: bool,
) -> Serving:
    """Make the load of one instance of what was chosen."""
    method = (choice.engine.methods or {}).get(choice.weights_format)
    serving = make_serving(
        *(settings, model, budget, _name_format(choice, method)),
        engine="ktransformers" if choice.hybrid else "vllm",
        version=choice.engine.version,
        method=method,
        threads=placement.pool_threads or None,
        in_memory=in_memory,
    )
    # Of every start but the first, which writes them.
    return replace(serving, load_format=LOAD_FORMAT) if choice.prepared.enabled else serving


def count_running(many: int, serving: Serving, instances: int) -> int:
    """Count the requests that run on all instances; one may have fewer than its share."""
    return min(many, int(serving.running) * instances)


def _count_held_requests(settings: Settings, budget: Budget, tokens: int) -> int:
    """Count the requests of so many tokens that an instance holds; part of one is none.

    Each copy of attention has a cache of its own.
    """
    gpu = budget.gpu
    copies = gpu.data if gpu else 1
    limit = gpu.sequences * copies if gpu else parse_int(settings.engine_args.get(VLLM.requests))
    held = copies * (budget.kv_tokens_one // max(1, tokens))
    return max(1, held if limit is None else min(limit, held))


def add_hosts(host: Host, settings: Settings, serving: Serving) -> tuple[Serving, str | None]:
    """Add the hosts that serve together and their link; also return what was assumed about it."""
    from kimi_prov.planner.throughput import links  # noqa: PLC0415

    link, assumed = links.find_link(host)
    return replace(serving, hosts=settings.hosts_per_model, link=link), assumed


def _choose_lengths(settings: Settings, context: int) -> tuple[int, int]:
    """Return the tokens of a prompt and of its answer, cut to fit the context."""
    if settings.request_tokens <= context:
        return settings.input_tokens, settings.output_tokens
    answer = min(settings.output_tokens, max(1, context // 4))
    return max(1, min(settings.input_tokens, context - answer)), answer


def make_plugin_layout(
    host: Host, model: Model, choice: EngineChoice, cpu: Cpu | None, placement: Placement
) -> Layout | None:
    """Make the layout of the plugin's experts: threads, nodes and memory bandwidth."""
    backend = choice.experts
    if backend is None or cpu is None:
        return None
    from kimi_prov.planner.throughput.physics import STREAM_OF_THEORY  # noqa: PLC0415
    from kimi_prov.planner.throughput.plugin import READ_OF_THEORY, Layout  # noqa: PLC0415

    stream = cpu.measured_gb_s or cpu.bandwidth_gb_s * STREAM_OF_THEORY
    own = max(1, len(parse_list(placement.threads)))
    packed = model_bytes.count_int8_params(model.architecture) if choice.dense == "int8" else 0
    return Layout(
        backend=backend,
        threads=placement.pool_threads if backend == "kt" else own,
        nodes=max(1, len(placement.pools if backend == "kt" else placement.nodes)),
        engine_threads=own,
        node_gb_s=stream / max(1, len(host.nodes)),
        vector=cpu.vector,
        int8_params=packed,
        read_gb_s=cpu.bandwidth_gb_s * READ_OF_THEORY / max(1, len(host.nodes)),
        one_call=backend == "native" and choice.dense == "int8",
    )


def _list_qualifications(
    machine: Machine, serving: Serving, layout: Layout | None
) -> Iterator[str]:
    """List the special conditions of an estimate: no graphs, or experts computed by the plugin."""
    if machine.cpu is None and serving.without_graphs:
        yield "without CUDA graphs"
    if layout is not None:
        yield _describe_measurement(layout)
    if serving.hosts > 1:
        yield f"over {serving.hosts} hosts, where no speed was measured by this project"


def _describe_measurement(layout: Layout) -> str:
    """Say where the figures of the plugin's experts come from."""
    nodes = f"{layout.nodes} nodes" if layout.nodes > 1 else "1 node"
    return f"measured on 16 cores with AMX, scaled to {layout.threads} threads on {nodes}"


def _name_format(choice: EngineChoice, method: str | None) -> str:
    """Name the format for the estimator: that of the experts in memory, else the checkpoint's."""
    if choice.experts is not None:
        return expert_backend.RESIDENT_FORMATS[choice.experts]
    if choice.hybrid and method in ("RAWINT4", "AMXINT4", "AMXINT8"):
        return method.lower()
    return choice.weights_format


def make_machine(
    host: Host, choice: EngineChoice, placement: Placement
) -> tuple[Machine | None, str | None]:
    """Describe what one engine runs on; None with the reason. Also return what was assumed."""
    from kimi_prov.planner.throughput import Machine  # noqa: PLC0415

    cpu, assumed = make_cpu(host)
    cards = make_gpus(host)
    disk, parts = find_disk_speed(host), list_measured_parts(host)
    if host.gpu_bytes and cards is None:
        return None, "the catalogue does not know these GPUs"
    if cards is not None and not choice.hybrid:
        return Machine(gpus=cards, disk_gb_s=disk, measured=parts - {"memory"}), None
    if cpu is None:
        return None, "the processor's cores are not known"
    if cards is None and choice.experts is None and placement.nodes:
        cpu = _take_nodes(cpu, len(placement.nodes) / max(1, len(host.nodes)))
    return Machine(cpu=cpu, gpus=cards, disk_gb_s=disk, measured=parts), assumed


def _take_nodes(cpu: Cpu, share: float) -> Cpu:
    """Return the part of the processors on whose nodes an engine runs."""
    measured, links = cpu.measured_gb_s, cpu.links_gb_s
    return replace(
        cpu,
        sockets=max(1, round(cpu.sockets * share)),
        cores=max(1, round(cpu.cores * share)),
        bandwidth_gb_s=cpu.bandwidth_gb_s * share,
        measured_gb_s=measured * share if measured else None,
        links_gb_s=links * share if links else None,
    )


# The newest generation that is specified: what a machine says beyond it is no link.
_NEWEST_PCIE = 7


def list_measured_parts(host: Host) -> frozenset[Part]:
    """Name the parts whose speed was measured on this machine."""
    speeds: dict[Part, float] = {
        "memory": host.bandwidth.measured,
        "gpu_memory": host.measured.gpu_bytes,
        "copy": host.measured.gpu_copy,
        "matrix": host.measured.bf16_flops,
        "disk": host.measured.disk_bytes,
    }
    return frozenset(part for part, speed in speeds.items() if speed)


def make_gpus(host: Host) -> Gpus | None:
    """Describe the GPUs by measured figures, else by those of their data sheet."""
    from kimi_prov.planner.throughput.measured import apply_measurements  # noqa: PLC0415
    from kimi_prov.planner.throughput.subjects import make_gpus  # noqa: PLC0415

    sheet = make_gpus(host.gpu, len(host.gpu_bytes)) if host.gpu else None
    if sheet is None:
        return None
    sheet = replace(sheet, pcie_gb_s=sheet.pcie_gb_s * _find_lane_share(host))
    return apply_measurements(sheet, host.measured)


def _find_lane_share(host: Host) -> float:
    """Find the share of a card's PCIe rate that its slot gives: the least of all cards.

    Half the lanes carry half, and so does the generation before. The present generation of a link
    is no sign, because an idle one saves power.
    """
    shares = [1.0]
    for gpu in host.facts["gpus"]:
        link = gpu.get("pcie") or {}
        width, most = link.get("width"), link.get("width_max")
        slot, card = link.get("gen_max"), link.get("gen_card")
        lanes = width / most if width and most else 1.0
        behind = min(card or 0, _NEWEST_PCIE) - min(slot or card or 0, _NEWEST_PCIE)
        shares.append(min(1.0, lanes) * 0.5 ** max(0, behind))
    return min(shares)


def make_cpu(host: Host) -> tuple[Cpu | None, str | None]:
    """Describe the processors; the bandwidth is measured, else the DIMMs', else the catalogue's."""
    from kimi_prov.planner.throughput import Cpu  # noqa: PLC0415
    from kimi_prov.planner.throughput.physics import STREAM_OF_THEORY  # noqa: PLC0415

    cores = host.cores
    row = host.processor
    if not cores and row is not None:
        cores = row.cores * host.sockets
    if not cores:
        return None, None
    measured, theory = host.bandwidth.measured, host.bandwidth.theoretical
    sockets = _count_sockets_with_memory(host)
    assumed = None
    bandwidth = theory / _GB if theory else 0.0
    if not bandwidth and row is not None:
        bandwidth = row.bandwidth_gb_s * sockets
        assumed = f"every memory channel populated: {bandwidth:.0f} GB/s"
    if not bandwidth:
        known = measured / _GB / STREAM_OF_THEORY if measured else 0.0
        bandwidth = known or _UNKNOWN_SOCKET_GB_S * sockets
        if not known:
            assumed = f"memory bandwidth is not known: {bandwidth:.0f} GB/s were assumed"
    links = row.links_gb_s if row else None
    return Cpu(
        sockets=sockets,
        # Engines bind to nodes with memory: the cores of the others stay idle.
        cores=max(1, cores * sockets // host.sockets),
        bandwidth_gb_s=bandwidth,
        measured_gb_s=measured / _GB if measured else None,
        links_gb_s=links * sockets if links else None,
        vector=_find_vector(host),
    ), assumed


def _count_sockets_with_memory(host: Host) -> int:
    """Count processors with memory of their own: the others read another's, over the link."""
    own = list_own_nodes(host.facts["numa"]["nodes"])
    if not own or not host.nodes:
        return host.sockets
    return max(1, round(host.sockets * len(host.nodes) / max(len(own), len(host.nodes))))


def _find_vector(host: Host) -> Any:  # noqa: ANN401  (one of four words)
    isa = host.isa or frozenset()
    if "amx_int8" in isa:
        return "amx"
    if "avx512f" in isa:
        return "avx512"
    return "arm" if host.arm else "avx2"


def find_disk_speed(host: Host) -> float | None:
    """Find the GB/s of sequential reads: measured on the weights' disk, else the fastest specified.

    None where neither is known.
    """
    best = host.measured.disk_bytes or max(host.disk_rates, default=0.0)
    return best / _GB if best else None
