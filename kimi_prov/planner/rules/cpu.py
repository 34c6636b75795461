"""Rules about processors: instructions, threads, NUMA nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.memory import gpu
from kimi_prov.planner.rules.context import Case, Hit, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

_AMX = ("amx_tile", "amx_int8", "amx_bf16")


@rule(
    "cpu.format_isa",
    "The CPU lacks the instructions that the expert kernels of this format need",
    "kt-kernel 0.7.2: variants by CPU, kimi_prov/catalog/formats.yaml",
)
def _format_isa(case: Case) -> Iterator[Hit]:
    form = gpu.resident_format(case.catalogue, case.choice.engine, case.choice.weights_format)
    if not case.choice.hybrid or form is None or not form.isa or case.host.isa is None:
        return
    if not any(set(need) <= case.host.isa for need in form.isa):
        yield Hit(
            "blocker",
            observed=", ".join(sorted(case.host.isa & {f for need in form.isa for f in need}))
            or "none of them",
            required=" or ".join(" and ".join(need) for need in form.isa),
            fix="choose a CPU with AVX-512 (any Xeon since Ice Lake, any EPYC since Genoa)",
        )
    elif not set(form.isa[0]) <= case.host.isa:
        yield Hit(
            "warning",
            observed="AVX2 alone",
            required=" and ".join(form.isa[0]),
            fix="choose a CPU with AVX-512: decoding is about 1.5 times, prompts 3 times as fast",
            title="The expert kernels fall back to AVX2",
        )


@rule(
    "cpu.amx_permission",
    "The CPU has AMX, and the kernel does not grant its state to processes",
    "arch_prctl(ARCH_REQ_XCOMP_PERM): Linux 5.16 and later grant AMX state on request",
)
def _amx_permission(case: Case) -> Iterator[Hit]:
    has = case.host.isa is not None and bool(case.host.isa.intersection(_AMX))
    if has and case.facts["cpu"].get("amx_permission") is False:
        yield Hit(
            "warning",
            observed="amx in the CPU, permission refused",
            required="kernel 5.16 or newer; on a virtual machine, XTILEDATA passed through",
            fix="boot a newer kernel, or pass the host's CPU through",
        )


@rule(
    "cpu.threads_as_cores",
    "More expert threads are asked for than the CPU has physical cores",
    "kt-kernel README: threads are physical cores; reference 003 takes 96 threads for cores",
)
def _threads_as_cores(case: Case) -> Iterator[Hit]:
    asked = case.flags.get("kt-cpuinfer")
    cores = len(case.host.primary)
    if isinstance(asked, int) and cores and asked > cores:
        yield Hit(
            "warning",
            observed=f"kt-cpuinfer {asked}, {cores} cores, {len(case.host.cpus)} threads",
            required=f"at most {case.place.pool_threads}",
            fix=f"remove kt-cpuinfer from kimi_engine_args (the plan chose "
            f"{case.place.pool_threads})",
        )


@rule(
    "cpu.cores_left",
    "Too few cores are left beside the engine's spinning threads",
    "measured with kt-kernel 0.7.2: threads on every core cost 2.4 to 6 times",
)
def _cores_left(case: Case) -> Iterator[Hit]:
    asked = case.flags.get("kt-cpuinfer")
    cores = len(case.host.primary)
    if isinstance(asked, int) and cores and cores - 2 < asked <= cores:
        yield Hit(
            "warning",
            observed=f"kt-cpuinfer {asked} of {cores} cores",
            required=f"at most {max(1, cores - 2)}",
            fix="leave at least two cores to the server and the GPUs' processes",
        )


@rule(
    "cpu.identity",
    "The processor hides its model: figures for it are assumed",
    "virtual machines show names such as `Intel(R) Xeon(R) Processor`",
)
def _identity(case: Case) -> Iterator[Hit]:
    if case.heavy and case.host.processor is None:
        yield Hit(
            "info",
            observed=str(case.facts["cpu"].get("model") or "unknown"),
            required="a model that the catalogue knows",
            fix="add it to cpus.yaml of your own catalogue, or measure with "
            "`kimi-prov probe --measure`",
        )


@rule(
    "numa.sub_nodes",
    "A socket is split into several NUMA nodes",
    "SNC and NPS: kt-kernel without a node list takes nodes 0 to count-1, part of one socket",
)
def _sub_nodes(case: Case) -> Iterator[Hit]:
    nodes, sockets = len(case.host.nodes), case.host.sockets
    if case.heavy and nodes > sockets:
        yield Hit(
            "info",
            observed=f"{nodes} nodes on {sockets} socket(s)",
            required="one node a socket is simplest; the plan names the nodes it uses",
        )


@rule(
    "numa.binding",
    "The inventory's node list does not go with the thread pools",
    "sglang-kt: --kt-numa-nodes is as long as --kt-threadpool-count; moe-tp.hpp: the count "
    "divides the expert's width",
)
def _binding(case: Case) -> Iterator[Hit]:
    if not case.choice.hybrid:
        return
    count, listed = case.flags.get("kt-threadpool-count"), case.flags.get("kt-numa-nodes")
    width = case.model.architecture.expert_width
    if isinstance(count, int) and count > 0 and width % count:
        yield Hit(
            "blocker",
            observed=f"kt-threadpool-count {count}",
            required=f"a number that divides {width}: 1, 2, 4 or 8",
            fix="remove kt-threadpool-count from kimi_engine_args",
        )
    if isinstance(listed, list) and isinstance(count, int) and len(listed) != count:
        yield Hit(
            "blocker",
            observed=f"{count} pools, {len(listed)} nodes",
            required="as many nodes as pools",
            fix="give both kt-threadpool-count and kt-numa-nodes, or neither",
        )
