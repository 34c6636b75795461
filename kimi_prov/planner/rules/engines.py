"""Rules about the engine: flags that it does not accept, combinations known to fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kimi_prov.catalog.broken import Combination
from kimi_prov.planner.engine.vllm import find_graphs_off_flag
from kimi_prov.planner.memory import gpu as gpu_memory
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import VLLM, find_equivalent, find_flag_names
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator


@register_rule("engine.flag")
def _check_flags(context: PlanContext) -> Iterator[RuleResult]:
    own = context.choice.engine
    for flag in sorted(context.settings.engine_args):
        value = context.flags.get(flag)
        if flag not in context.flags:
            continue
        text = value if isinstance(value, str) else None
        state = context.catalogue.flag(own.name, own.version, f"--{flag}", text)
        shown = f"kimi_engine_args: {flag}" + (f": {text}" if text else "")
        instead = state.replacement or "nothing"
        if state.status in ("rejected", "fails"):
            reason = f" ({state.reason})" if state.reason else ""
            yield RuleResult(
                severity="blocker",
                observed=shown,
                required=f"a flag of {own.name} {own.version}{reason}",
                fix=f"remove it; instead: {instead}",
                names={"engine": own.name, "version": own.version, "flag": flag},
                source=state.source,
            )
        elif state.status == "unknown" and (own_flag := find_equivalent(own.name, flag)):
            yield RuleResult(
                severity="blocker",
                observed=shown if text else f"{shown}: {json.dumps(value)}",
                required=f"{own_flag}, which is {own.name}'s name for it",
                fix=f"write {own_flag} in place of {flag} in kimi_engine_args",
                wording="foreign",
                names={"flag": flag},
            )
        elif state.status == "deprecated":
            yield RuleResult(
                severity="warning",
                observed=shown,
                required=f"instead: {instead}",
                fix=f"remove it; instead: {instead}",
                names={"engine": own.name, "flag": flag},
                source=state.source,
            )


@register_rule("engine.known_broken")
def _check_broken_combinations(context: PlanContext) -> Iterator[RuleResult]:
    own = context.choice.engine
    environment = context.plan["instances"][0]["env"]
    flags: list[str] = []
    for flag, value in context.flags.items():
        # A zero turns the flag's effect off, as false does.
        if value:
            flags += [f"--{flag}", f"--{flag}={value}"]
    combination = Combination(
        engine=own.name,
        variant=own.variant,
        version=own.version,
        model=context.model.name,
        weights_format=context.choice.weights_format,
        tensor_parallel=context.budget.tensor_parallel,
        capability=context.host.capability,
        flags=tuple(flags),
        pipeline_parallel=context.plan["parallel"]["pipeline"],
        data_parallel=context.plan["parallel"]["data"],
        hosts=context.settings.hosts_per_model,
    )
    for row in context.catalogue.broken_with(combination):
        if row.id == "vllm-cpu-int4":
            continue  # engine.format reports it, with the engine that serves it
        if any(f"{name}={value}" in row.fix for name, value in environment.items()):
            continue  # the plan has replaced it
        yield RuleResult(
            severity=row.severity,
            observed=row.note or row.title,
            required="a combination without this fault",
            fix=row.fix,
            title=row.title,
            source=row.source,
        )


@register_rule("engine.alternative")
def _check_alternative(context: PlanContext) -> Iterator[RuleResult]:
    if context.host.gpu_bytes or not context.model.gguf or not context.host.memory_bytes:
        return
    alternative = prediction.find_alternative(context.host, context.model)
    if alternative is not None:
        yield RuleResult(
            observed=f"a GGUF file that memory holds: {alternative[0]}",
            required=f"{alternative[1]}; this product does not provision them",
        )


@register_rule("engine.kv_dtype")
def _check_kv_dtype(context: PlanContext) -> Iterator[RuleResult]:
    requested = context.settings.kv_dtype == "fp8"
    low = context.host.capability is not None and context.host.capability[:1] in ("7", "8")
    if requested and not context.host.gpu_bytes:
        yield RuleResult(
            severity="warning",
            observed="kimi_kv_dtype: fp8, no GPU",
            required="bf16",
            fix="remove kimi_kv_dtype: without GPUs the cache is bf16",
        )
    elif requested and low and not context.choice.hybrid:
        yield RuleResult(
            severity="blocker",
            observed=f"kimi_kv_dtype: fp8, compute capability {context.host.capability}",
            required="compute capability 9.0",
            fix="set kimi_kv_dtype to auto or bf16",
        )


@register_rule("engine.kv_dtype_chosen")
def _check_chosen_kv_dtype(context: PlanContext) -> Iterator[RuleResult]:
    own = context.choice.engine
    auto = (
        context.settings.auto("kv_dtype")
        and find_flag_names(own.name).kv_dtype not in context.settings.engine_args
    )
    if auto and context.budget.kv_dtype == "fp8":
        yield RuleResult(
            observed=f"{context.budget.kv_tokens} tokens at 8 bit",
            required=f"{context.budget.context} tokens of context",
            fix="set kimi_kv_dtype to bf16 for a shorter context without rounding",
        )


@register_rule("engine.tight")
def _check_tight_memory(context: PlanContext) -> Iterator[RuleResult]:
    gpu = context.budget.gpu
    usual = context.choice.engine.gpu_memory_utilization or 0.9
    if gpu and not context.choice.hybrid and gpu.utilization > usual:
        yield RuleResult(
            observed=f"gpu-memory-utilization {gpu.utilization}, "
            f"max-num-batched-tokens {gpu.batched_tokens}, context {context.budget.context}",
            required=f"{usual} and 8192 on GPUs with more memory",
            fix="use GPUs with more memory for longer contexts; where the start ends with `CUDA "
            "out of memory`, lower kimi_concurrency (max-num-seqs), or add enforce-eager: true, "
            "which costs most of the speed",
        )


@register_rule("engine.eager")
def _check_eager(context: PlanContext) -> Iterator[RuleResult]:
    flag = find_graphs_off_flag(context.settings.engine_args)
    if flag and context.budget.gpu and not context.choice.hybrid:
        yield RuleResult(
            observed=f"{flag}, by kimi_engine_args",
            required="CUDA graphs, which take some memory of each GPU",
            fix=f"take {flag} away where `kimi-prov plan` still finds room for the context",
        )


@register_rule("engine.sequences")
def _check_sequences(context: PlanContext) -> Iterator[RuleResult]:
    gpu = context.budget.gpu
    if gpu is None or context.choice.hybrid:
        return
    requested = gpu_memory.divide_requests(context.settings, context.budget.instances * gpu.data)
    many = context.settings.engine_args.get(VLLM.requests, requested)
    if requested > gpu.sequences and VLLM.requests not in context.settings.engine_args:
        many_run = gpu.sequences >= gpu_memory.MAX_SEQUENCES
        reason = "takes the cache's room" if many_run else "has no room on GPUs so full"
        yield RuleResult(
            observed=f"kimi_concurrency: {context.settings.concurrency}; the sampler of more "
            f"{reason}",
            required=f"max-num-seqs {gpu.sequences}: the others wait",
            fix="lower kimi_concurrency, or use GPUs with more memory",
            wording="wait",
        )
    elif isinstance(many, int) and many > 512 and gpu.memory < 100 << 30:
        yield RuleResult(
            observed=f"max-num-seqs {many}",
            required="64 on cards of 80 GB",
            fix="lower kimi_concurrency, or remove max-num-seqs from kimi_engine_args",
        )


@register_rule("engine.reasoning")
def _check_reasoning(context: PlanContext) -> Iterator[RuleResult]:
    if context.model.reasoning_parser and context.heavy:
        yield RuleResult(
            observed=f"--reasoning-parser {context.model.reasoning_parser}: reasoning comes apart "
            "from the answer",
            required="clients allow 1,024 tokens and more, and look for an empty content",
        )


@register_rule("engine.speculative")
def _check_speculative(context: PlanContext) -> Iterator[RuleResult]:
    if context.flags.get("speculative-config") and context.flags.get("enable-prefix-caching"):
        yield RuleResult(
            observed="speculative-config with enable-prefix-caching",
            required="both reported as active in the engine's log",
        )


@register_rule("engine.override")
def _check_override(context: PlanContext) -> Iterator[RuleResult]:
    best = context.choice.preferred
    if not context.settings.auto("engine") and context.settings.engine != best:
        yield RuleResult(
            observed=f"kimi_engine: {context.settings.engine}",
            required=f"the planner would choose {best}: {context.choice.because}",
            fix="set kimi_engine to auto",
        )


@register_rule("weights.format_override")
def _check_format_override(context: PlanContext) -> Iterator[RuleResult]:
    own, requested = context.model.native_format, context.choice.weights_format
    if requested != own and requested in context.model.formats:
        row = next((r for r in context.model.published if r.format == requested), None)
        yield RuleResult(
            observed=f"kimi_weights_format: {requested}" + (f" ({row.repo})" if row else ""),
            required=f"{own} is what the makers publish",
            fix="set kimi_weights_format to auto",
        )
