"""Rules about processors: instructions, threads, NUMA nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.node_kinds import list_other_nodes, list_own_nodes
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.findings import SHOW_HOST_CPU
from kimi_prov.planner.memory import hybrid
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import KT
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.facts.machine import NodeFacts
    from kimi_prov.facts.host import Host

_SPREAD_MODULES = (
    "move modules so that every socket has equal ones; where they are in place, look at the "
    "firmware: a failed or disabled channel hides its modules (dmidecode -t memory lists them)"
)
# How boards name the processor of a slot: P0 CHANNEL A, CPU1_DIMM_A1, PROC 2 DIMM 3, P1-DIMMA1.
_PROCESSOR = re.compile(r"\b(?:CPU|PROC|P)[ _]?\d(?!\d)", re.IGNORECASE)
_OTHER_MEMORY = {
    "gpu": "the GPUs' own memory",
    "hbm": "HBM of the processors (flat mode)",
    "cxl": "memory without processors (CXL or another expander)",
}

_AMX = ("amx_tile", "amx_int8", "amx_bf16")
_AMX_DESIGNS = ("Sapphire Rapids", "Emerald Rapids", "Granite Rapids")


@register_rule("cpu.format_isa")
def _check_format_isa(context: PlanContext) -> Iterator[RuleResult]:
    form = hybrid.find_resident_format(
        context.catalogue, context.choice.engine, context.choice.weights_format
    )
    if not context.choice.hybrid or form is None or not form.isa or context.host.isa is None:
        return
    if context.host.arm:
        return  # engine.arch reports it: an ARM processor never has them
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
            fix=f"boot a newer kernel; on a virtual machine, {SHOW_HOST_CPU}",
        )


@register_rule("cpu.amx_masked")
def _check_masked_amx(context: PlanContext) -> Iterator[RuleResult]:
    """Check only where experts are computed on the processor: GPUs need no AMX."""
    host = context.host
    guest = context.facts["host"].get("virtualization")
    design = context.facts["cpu"].get("microarchitecture")
    has = design in _AMX_DESIGNS or (host.processor and "amx_int8" in host.processor.isa)
    on_cpu = context.choice.hybrid or not host.gpu_bytes
    if not guest or host.isa is None or not has or not on_cpu or host.isa.intersection(_AMX):
        return
    cost = _estimate_prompts(context, replace(host, isa=host.isa.union(_AMX)))
    yield RuleResult(
        observed=f"{guest} guest on {design or host.cpu_model}: no amx_tile, amx_int8, amx_bf16"
        + cost,
        required="the processor's AMX, shown to the guest",
        fix=f"{SHOW_HOST_CPU}; the guest needs Linux 5.16 or newer",
    )


def _estimate_prompts(context: PlanContext, other: Host) -> str:
    """Compare the speed of prompts with that of another host, by the plan's own estimate."""
    now = context.plan["throughput"]["prefill_tok_s"]["expected"]
    if now is None:
        return ""
    then = prediction.make_document(
        other,
        context.settings,
        context.model,
        context.choice,
        context.budget,
        context.place,
        prediction.Beside(in_memory=False),
    )["prefill_tok_s"]["expected"]
    if then is None:
        return ""
    return f"; prompts at about {now:,.0f} tokens/s, with AMX about {then:,.0f} (estimated)"


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


# What a hypervisor shows in place of a processor's name.
_HIDDEN_NAME = re.compile(
    r"Intel(?:\(R\))? Xeon(?:\(R\))? (?:Processor|CPU)\b(?! (?:Max|E\d|D-|W-))|QEMU|KVM|Virtual"
    r"|EPYC(?:-\w+)? Processor\b",
    re.IGNORECASE,
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
        model = str(context.facts["cpu"].get("model") or "unknown")
        hidden = model == "unknown" or _HIDDEN_NAME.search(model)
        yield RuleResult(
            names={"why": "it hides its model" if hidden else "the catalogue has no row for it"},
            observed=model,
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


@register_rule("numa.without_memory")
def _check_nodes_without_memory(context: PlanContext) -> Iterator[RuleResult]:
    """Check nodes with processors; the node of a growing virtual machine may still be empty."""
    rows, used = list_own_nodes(context.facts["numa"]["nodes"]), context.host.nodes
    bare = [row for row in rows if row.get("memory_total_bytes") == 0 and row["cpus"]]
    with_memory = {node.id for node in used}
    bare = [row for row in bare if row["id"] not in with_memory]
    sockets = context.host.sockets
    if bare and used and context.heavy:
        primary = set(context.host.primary)
        cores = [len(primary.intersection(parse_list(row["cpus"]))) for row in bare]
        bare_words = [
            f"node {row['id']}: {count} cores, no memory"
            for row, count in zip(bare, cores, strict=True)
        ]
        held = [f"node {node.id}: {format_bytes(node.memory_bytes)}" for node in used]
        yield RuleResult(
            observed="; ".join([*bare_words, *held]),
            required=f"memory at each of {len(rows)} nodes; so about {len(used)} of {len(rows)} "
            f"parts of the bandwidth are there, {sum(cores)} of {len(primary)} cores would read "
            "only over the link between the nodes, and numactl binds nothing to such a node",
            fix=_SPREAD_MODULES,
        )
    elif context.heavy and sockets > 1 and (alone := _find_only_socket(context)):
        yield RuleResult(
            wording="socket",
            observed=f"{alone[1]} modules, all at {alone[0]}; {sockets} sockets",
            required="equal modules at every socket; so half of the bandwidth or less is there, "
            "and the other cores read over the link between the sockets",
            fix=_SPREAD_MODULES,
        )


def _find_only_socket(context: PlanContext) -> tuple[str, int] | None:
    """Find the processor at which all modules are, by the names of their slots."""
    modules = context.facts["memory"].get("dimms") or []
    names = [
        _PROCESSOR.search(f"{row.get('bank') or ''} {row.get('locator') or ''}") for row in modules
    ]
    named = {re.sub(r"[ _]", "", match.group().upper()) for match in names if match is not None}
    return (named.pop(), len(modules)) if len(named) == 1 and None not in names else None


@register_rule("numa.other_memory")
def _check_other_memory(context: PlanContext) -> Iterator[RuleResult]:
    rows = list_other_nodes(context.facts["numa"]["nodes"])
    by_kind: dict[str, list[NodeFacts]] = {}
    for row in rows:
        by_kind.setdefault(row.get("kind") or "", []).append(row)
    bare_words = [
        f"{_OTHER_MEMORY[kind]}: node {', '.join(str(row['id']) for row in group)}, "
        f"{format_bytes(sum(row.get('memory_total_bytes') or 0 for row in group))}"
        for kind, group in by_kind.items()
    ]
    if bare_words:
        own = context.facts["memory"]["total_bytes"]
        yield RuleResult(
            observed="; ".join(bare_words),
            required=f"{format_bytes(own)} at the processors is what the plan counts and binds"
            if own
            else "the plan counts and binds the processors' own memory",
            fix="where HBM shall help, set the firmware's memory mode to cache mode"
            if "hbm" in by_kind
            else None,
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
