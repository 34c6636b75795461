"""Rules about GPUs: their kinds, their links, and how the model is split over them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.names import is_cut
from kimi_prov.contract import unit_names
from kimi_prov.contract.gpu_rows import get_gpu_name
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import Workload
from kimi_prov.planner.memory import gpu as gpu_memory
from kimi_prov.planner.memory.stages import count_stage_share
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_MEMORY_SPREAD = 0.02
_MAX_USED_BYTES = 2 << 30


@register_rule("gpu.mixed")
def _check_mixed_models(context: PlanContext) -> Iterator[RuleResult]:
    kinds = {str(get_gpu_name(gpu)) for gpu in context.gpus}
    sizes = [size for size in context.host.gpu_bytes if size]
    spread = sizes and max(sizes) - min(sizes) > max(sizes) * _MAX_MEMORY_SPREAD
    if len(kinds) > 1 or spread:
        yield RuleResult(
            observed=", ".join(sorted(kinds)),
            required="equal GPUs",
            fix="use equal GPUs for one model",
        )


@register_rule("gpu.shared_memory")
def _check_shared_memory(context: PlanContext) -> Iterator[RuleResult]:
    names = context.host.shared_gpus
    if names:
        memory, weights = context.host.memory_bytes, context.budget.weights_total
        yield RuleResult(
            severity="warning",
            observed=f"{', '.join(sorted(set(names)))}: {format_bytes(memory)} that processor and "
            "GPU share",
            required=f"{format_bytes(weights)} of weights of {context.model.name}, in memory that "
            "is counted once; no engine of this program has a lock for such a GPU",
            fix="take GPUs with memory of their own; or serve a model that fits by the maker's own "
            "containers, which this program does not provision",
        )


@register_rule("gpu.unknown")
def _check_unknown_gpu(context: PlanContext) -> Iterator[RuleResult]:
    if context.gpus and context.host.gpu is None and not context.host.shared_gpus:
        name = str(get_gpu_name(context.gpus[0]))
        cut = is_cut(name)
        yield RuleResult(
            observed=f"{name} (cut by nvidia-smi)" if cut else name,
            required="a card of the catalogue, for speed and power",
            fix="add the output of nvidia-smi -L to the recording: it has the whole name"
            if cut
            else "add it to gpus.yaml of your own catalogue",
        )


@register_rule("gpu.mig")
def _check_mig(context: PlanContext) -> Iterator[RuleResult]:
    cut = [gpu for gpu in context.gpus if gpu.get("mig")]
    if cut:
        indices = ",".join(str(gpu["index"]) for gpu in cut)
        off = all(gpu.get("mig_pending") is False for gpu in cut)
        yield RuleResult(
            observed=f"MIG on GPU {indices.replace(',', ', ')}"
            + (", off after the next restart" if off else ""),
            required="MIG off",
            fix="restart the machine"
            if off
            else f"nvidia-smi -i {indices} -mig 0, then restart the machine",
        )


@register_rule("gpu.mig_pending")
def _check_pending_mig(context: PlanContext) -> Iterator[RuleResult]:
    waiting = [g for g in context.gpus if g.get("mig_pending") and not g.get("mig")]
    if waiting:
        indices = ",".join(str(gpu["index"]) for gpu in waiting)
        yield RuleResult(
            observed=f"MIG off and pending on GPU {indices.replace(',', ', ')}",
            required="MIG off, also after the next restart or reset",
            fix=f"nvidia-smi -i {indices} -mig 0  takes the request back, before any restart",
        )


@register_rule("gpu.pcie")
def _check_pcie(context: PlanContext) -> Iterator[RuleResult]:
    for gpu in context.gpus:
        link = gpu.get("pcie") or {}
        width, most = link.get("width"), link.get("width_max")
        if width and most and width < most:
            yield RuleResult(
                severity="warning",
                observed=f"GPU {gpu['index']}: x{width} of x{most}",
                required=f"x{most}",
                fix="seat the card again, look at the riser and the slot's firmware setting",
            )
            return
        slot, card_most = link.get("gen_max"), link.get("gen_card")
        if card_most is None and context.host.gpu is not None:
            card_most = context.host.gpu.pcie_gen
        # The present generation is no sign: an idle link saves power.
        if slot and card_most and slot < card_most:
            yield RuleResult(
                severity="warning" if context.choice.hybrid else "info",
                observed=f"GPU {gpu['index']}: the slot gives PCIe {slot}",
                required=f"PCIe {card_most}",
                fix="use a slot, or a board, of the card's generation",
            )
            return


@register_rule("gpu.nvlink")
def _check_nvlink(context: PlanContext) -> Iterator[RuleResult]:
    ranks = context.budget.tensor_parallel
    if ranks < 2 or context.host.amd:
        return
    links = context.nvidia.get("nvlink")
    row = context.host.gpu
    sold = bool(row and row.nvlink_gb_s)
    matrix = (links or {}).get("matrix")
    if matrix is None:
        if not sold and row is not None:
            yield _describe_missing_nvlink("the card has no NVLink", ranks)
        return
    count = min(ranks, len(matrix))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    bare = [(a, b) for a, b in pairs if not _is_linked(matrix, a, b)]
    if not bare:
        yield RuleResult(
            severity="pass",
            observed=f"all {ranks} GPUs are linked",
            required="NVLink between all GPUs of one model",
        )
    elif len(bare) == len(pairs):
        yield _describe_missing_nvlink("no NVLink between any two GPUs", ranks)
    else:
        yield RuleResult(
            severity="warning",
            observed=f"no NVLink between {len(bare) // 2} of {len(pairs) // 2} pairs",
            required="NVLink between all GPUs of one model",
            fix="bridge every card, or share the model over the linked cards alone",
            wording="some",
        )


def _describe_missing_nvlink(observed: str, ranks: int) -> RuleResult:
    return RuleResult(
        severity="warning" if ranks >= 8 else "info",
        observed=observed,
        required=f"NVLink for tensor parallelism over {ranks} GPUs",
        fix="choose cards with NVLink (SXM, or NVL with bridges); decoding waits for PCIe else",
    )


def _is_linked(matrix: Sequence[Sequence[object]], a: int, b: int) -> bool:
    """Whether two cards are linked: a count of links, or nvidia-smi's own NV18, SYS, PIX."""
    try:
        value = matrix[a][b]
    except (IndexError, TypeError):
        return False
    if isinstance(value, str):
        return value.upper().startswith("NV")
    return bool(value)


@register_rule("gpu.fabric")
def _check_fabric(context: PlanContext) -> Iterator[RuleResult]:
    states = {str(gpu["fabric_state"]) for gpu in context.gpus if gpu.get("fabric_state")}
    wrong = {s for s in states if s.lower() not in ("completed", "n/a", "not supported")}
    if wrong:
        yield RuleResult(
            observed=", ".join(sorted(wrong)),
            required="Completed",
            fix="start nvidia-fabricmanager of exactly the driver's version; on a virtual machine "
            "the host has to",
        )


@register_rule("gpu.divisible")
def _check_divisible(context: PlanContext) -> Iterator[RuleResult]:
    ranks, shape = context.plan["parallel"]["tensor"], context.model.architecture
    for name, size in (("attention heads", shape.heads), ("expert width", shape.expert_width)):
        if ranks > 0 and size % ranks:
            yield RuleResult(
                observed=f"tensor-parallel-size {ranks}",
                required=f"a number that divides {size} ({name})",
                fix="remove tensor-parallel-size from kimi_engine_args",
            )
    gpu = context.budget.gpu
    engines = context.budget.instances
    if gpu and engines > 1 and gpu.gpus * engines > context.gpu_count:
        yield RuleResult(
            observed=f"kimi_instances: {engines}, {gpu.gpus} GPU(s) for each, "
            f"{context.gpu_count} GPU(s)",
            required="GPUs for every instance",
            fix="set kimi_instances to auto, or to fewer",
        )
    elif gpu and gpu.gpus > context.gpu_count:
        parallel = {"tensor": ranks, "pipeline": gpu.pipeline, "data": gpu.data}
        named = {name: size for name, size in parallel.items() if size > 1 or name == "tensor"}
        yield RuleResult(
            observed=", ".join(f"{name}-parallel-size {size}" for name, size in named.items())
            + f", {context.gpu_count} GPU(s)",
            required="not more ranks than GPUs",
            fix=f"remove {', '.join(f'{name}-parallel-size' for name in named)} from "
            "kimi_engine_args",
        )


@register_rule("gpu.idle")
def _check_idle_gpus(context: PlanContext) -> Iterator[RuleResult]:
    count, gpu = context.gpu_count, context.budget.gpu
    work = gpu.gpus * context.budget.instances if gpu else 0
    if 0 < work < count:
        yield RuleResult(
            observed=f"{work} of {count} GPUs work",
            required="1, 2, 4 or 8 GPUs",
        )


@register_rule("kv.replication")
def _check_replication(context: PlanContext) -> Iterator[RuleResult]:
    gpu, shape = context.budget.gpu, context.model.architecture
    if gpu is None or gpu.ranks < 2 or shape.attention != "mla" or context.choice.hybrid:
        return
    kv = max(0, context.budget.kv_bytes)
    eight = model_bytes.count_kv_bytes_per_token(shape, 1)
    eight = count_stage_share(eight, shape, gpu.stage) if gpu.stage else eight
    if gpu.decode_context > 1 or not kv:
        return
    yield RuleResult(
        observed=f"{format_bytes(kv)} on each GPU hold {context.budget.kv_tokens} tokens "
        f"({context.budget.kv_bytes_per_token} bytes each, {context.budget.kv_dtype})",
        required=f"with an 8-bit cache {kv // eight * gpu.data} tokens; with "
        f"decode-context-parallel-size {gpu.ranks} {gpu.ranks} times as many",
    )


@register_rule("parallel.context")
def _check_context_parallel(context: PlanContext) -> Iterator[RuleResult]:
    gpu = context.budget.gpu
    if gpu and gpu.decode_context > 1 and _is_chosen(context, VLLM.decode_context_parallel):
        yield RuleResult(
            observed=f"{context.budget.kv_tokens_one // gpu.decode_context} tokens on one rank",
            required=f"{context.budget.context} tokens; {gpu.decode_context} ranks hold "
            f"{context.budget.kv_tokens_one}; few speeds of such layouts are known",
            fix="set decode-context-parallel-size to 1 in kimi_engine_args if one request's speed "
            "counts more than the context and many requests",
        )


@register_rule("parallel.pipeline")
def _check_pipeline_parallel(context: PlanContext) -> Iterator[RuleResult]:
    gpu = context.budget.gpu
    if gpu and gpu.pipeline > 1 and _is_chosen(context, VLLM.pipeline_parallel):
        hosts = context.settings.hosts_per_model
        yield RuleResult(
            observed=f"{context.gpu_count} GPUs" + (f" of {hosts} hosts" if hosts > 1 else ""),
            required=f"tensor-parallel-size {gpu.ranks}, pipeline-parallel-size {gpu.pipeline}: "
            "one request is no faster than on the GPUs of one stage",
        )


@register_rule("parallel.instances")
def _check_instances(context: PlanContext) -> Iterator[RuleResult]:
    gpu, many = context.budget.gpu, context.budget.instances
    if gpu and many > 1:
        yield RuleResult(
            observed=f"{len(context.host.gpu_bytes)} GPUs, {gpu.gpus} hold the model",
            required=f"{many} instances of tensor-parallel-size {gpu.ranks}; the proxy shares "
            "requests out",
            fix="set kimi_instances to 1 for one engine on all GPUs",
        )


@register_rule("parallel.data")
def _check_data_parallel(context: PlanContext) -> Iterator[RuleResult]:
    gpu, budget = context.budget.gpu, context.budget
    needed = context.settings.concurrency * min(budget.context, context.settings.request_tokens)
    short = budget.kv_tokens * budget.instances < needed
    if gpu is None or gpu.data * gpu.decode_context > 1 or gpu.ranks < 2 or not short:
        return
    if context.choice.hybrid or context.model.architecture.attention != "mla":
        return
    flags = {VLLM.tensor_parallel: 1, VLLM.data_parallel: gpu.ranks}
    flags[VLLM.expert_parallel] = True
    other = gpu_memory.make_budget(
        context.host,
        replace(context.settings, engine_args={**context.settings.engine_args, **flags}),
        context.catalogue,
        Workload(context.choice.engine, context.model, context.choice.weights_format),
    )
    if other.kv_tokens > budget.kv_tokens and other.kv_tokens_one >= budget.context:
        yield RuleResult(
            observed=f"cache for {budget.kv_tokens} tokens, {needed} wanted by "
            f"{context.settings.concurrency} requests",
            required=f"{other.kv_tokens} tokens with "
            + ", ".join(f"{flag}: {json.dumps(value)}" for flag, value in flags.items())
            + " in kimi_engine_args; a single request gets slower",
        )


def _is_chosen(context: PlanContext, flag: str) -> bool:
    return flag not in context.settings.engine_args


@register_rule("gpu.nvfp4")
def _check_fp4(context: PlanContext) -> Iterator[RuleResult]:
    low = (context.host.capability or "").partition(".")[0] in ("7", "8", "9")
    weights_format = context.choice.weights_format
    if weights_format in ("nvfp4", "mxfp4") and low and not context.host.amd:
        saved = "; here it saves 4.4 GB, no time" if weights_format == "nvfp4" else ""
        yield RuleResult(
            wording=None if weights_format == "nvfp4" else weights_format,
            observed=f"{weights_format}, compute capability {context.host.capability}",
            required=f"compute capability 10.0 for FP4 arithmetic{saved}",
        )


@register_rule("gpu.held")
def _check_gpu_memory_in_use(context: PlanContext) -> Iterator[RuleResult]:
    units = context.facts["kimi"].get("units") or {}
    ours = any(unit_names.is_serve(name) and units[name] == "active" for name in units)
    full = [gpu for gpu in context.gpus if (gpu.get("memory_used_bytes") or 0) > _MAX_USED_BYTES]
    if full and not ours:
        yield RuleResult(
            observed=", ".join(
                f"GPU {gpu['index']}: {format_bytes(gpu['memory_used_bytes'])}" for gpu in full
            ),
            required=f"less than {format_bytes(_MAX_USED_BYTES)} in use before the engine starts",
            fix="end what `nvidia-smi` lists there, also in containers (docker ps); where it lists "
            "nothing, restart the machine",
        )
