"""Rules about processors: instructions, threads, NUMA nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.memory import hybrid
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import KT

if TYPE_CHECKING:
    from collections.abc import Iterator

_AMX = ("amx_tile", "amx_int8", "amx_bf16")


@register_rule("cpu.format_isa")
def _check_format_isa(context: PlanContext) -> Iterator[RuleResult]:
    form = hybrid.find_resident_format(
        context.catalogue, context.choice.engine, context.choice.weights_format
    )
    if not context.choice.hybrid or form is None or not form.isa or context.host.isa is None:
        return
    if not any(set(need) <= context.host.isa for need in form.isa):
        yield RuleResult(
            severity="blocker",
            observed=", ".join(sorted(context.host.isa & {f for need in form.isa for f in need}))
            or "none of them",
            required=" or ".join(" and ".join(need) for need in form.isa),
            fix="choose a CPU with AVX-512 (any Xeon since Ice Lake, any EPYC since Genoa)",
        )
    elif not set(form.isa[0]) <= context.host.isa:
        yield RuleResult(
            severity="warning",
            observed="AVX2 alone",
            required=" and ".join(form.isa[0]),
            fix="choose a CPU with AVX-512: decoding is about 1.5 times, prompts 3 times as fast",
        )


@register_rule("cpu.amx_permission")
def _check_amx_permission(context: PlanContext) -> Iterator[RuleResult]:
    has = context.host.isa is not None and bool(context.host.isa.intersection(_AMX))
    if has and context.facts["cpu"].get("amx_permission") is False:
        yield RuleResult(
            observed="amx in the CPU, permission refused",
            required="kernel 5.16 or newer; on a virtual machine, XTILEDATA passed through",
            fix="boot a newer kernel, or pass the host's CPU through",
        )


@register_rule("cpu.threads_as_cores")
def _check_threads_as_cores(context: PlanContext) -> Iterator[RuleResult]:
    threads = context.flags.get(KT.threads)
    cores = len(context.host.primary)
    if isinstance(threads, int) and cores and threads > cores:
        yield RuleResult(
            observed=f"{KT.threads} {threads}, {cores} cores, {len(context.host.cpus)} threads",
            required=f"at most {context.place.pool_threads}",
            fix=f"remove {KT.threads} from kimi_engine_args (the plan chose "
            f"{context.place.pool_threads})",
        )


@register_rule("cpu.cores_left")
def _check_cores_left(context: PlanContext) -> Iterator[RuleResult]:
    threads = context.flags.get(KT.threads)
    cores = len(context.host.primary)
    if isinstance(threads, int) and cores and cores - 2 < threads <= cores:
        yield RuleResult(
            observed=f"{KT.threads} {threads} of {cores} cores",
            required=f"at most {max(1, cores - 2)}",
            fix="leave at least two cores to the server and the GPUs' processes",
        )


@register_rule("cpu.identity")
def _check_known_cpu(context: PlanContext) -> Iterator[RuleResult]:
    if context.heavy and context.host.processor is None:
        yield RuleResult(
            observed=str(context.facts["cpu"].get("model") or "unknown"),
            required="a model that the catalogue knows",
            fix="add it to cpus.yaml of your own catalogue, or measure with "
            "`kimi-prov probe --measure`",
        )


@register_rule("numa.sub_nodes")
def _check_sub_nodes(context: PlanContext) -> Iterator[RuleResult]:
    nodes, sockets = len(context.host.nodes), context.host.sockets
    if context.heavy and nodes > sockets:
        yield RuleResult(
            observed=f"{nodes} nodes on {sockets} socket(s)",
            required="one node a socket is simplest; the plan names the nodes it uses",
        )


@register_rule("numa.binding")
def _check_memory_binding(context: PlanContext) -> Iterator[RuleResult]:
    if not context.choice.hybrid:
        return
    count, listed = context.flags.get(KT.pools), context.flags.get(KT.nodes)
    width = context.model.architecture.expert_width
    if isinstance(count, int) and count > 0 and width % count:
        yield RuleResult(
            observed=f"{KT.pools} {count}",
            required=f"a number that divides {width}: 1, 2, 4 or 8",
            fix=f"remove {KT.pools} from kimi_engine_args",
        )
    if isinstance(listed, list) and isinstance(count, int) and len(listed) != count:
        yield RuleResult(
            observed=f"{count} pools, {len(listed)} nodes",
            required="as many nodes as pools",
            fix=f"give both {KT.pools} and {KT.nodes}, or neither",
        )
