"""Rules about the engine: flags that it does not take, combinations that are known to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import Combination
from kimi_prov.planner.engine import selection
from kimi_prov.planner.rules.context import Case, Hit, rule
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("engine.flag")
def _flags(case: Case) -> Iterator[Hit]:
    own = case.choice.engine
    for flag in sorted(case.wishes.engine_args):
        value = case.flags.get(flag)
        if flag not in case.flags:
            continue
        text = value if isinstance(value, str) else None
        state = case.catalogue.flag(own.name, own.version, f"--{flag}", text)
        shown = f"kimi_engine_args: {flag}" + (f": {text}" if text else "")
        instead = state.replacement or "nothing"
        if state.status in ("rejected", "fails"):
            reason = f" ({state.reason})" if state.reason else ""
            yield Hit(
                severity="blocker",
                observed=shown,
                required=f"a flag of {own.name} {own.version}{reason}",
                fix=f"remove it; instead: {instead}",
                names={"engine": own.name, "version": own.version, "flag": flag},
                source=state.source,
            )
        elif state.status == "deprecated":
            yield Hit(
                severity="warning",
                observed=shown,
                required=f"instead: {instead}",
                fix=f"remove it; instead: {instead}",
                names={"engine": own.name, "flag": flag},
                source=state.source,
            )


@rule("engine.known_broken")
def _broken(case: Case) -> Iterator[Hit]:
    own = case.choice.engine
    environment = case.plan["instances"][0]["env"]
    flags: list[str] = []
    for flag, value in case.flags.items():
        # A zero turns off what the flag would do, as false does.
        if value:
            flags += [f"--{flag}", f"--{flag}={value}"]
    given = Combination(
        engine=own.name,
        variant=own.variant,
        version=own.version,
        model=case.model.name,
        weights_format=case.choice.weights_format,
        tensor_parallel=case.budget.tensor_parallel,
        capability=case.host.capability,
        flags=tuple(flags),
    )
    for row in case.catalogue.broken_with(given):
        if row.id == "vllm-cpu-int4":
            continue  # engine.format says it, with what serves it instead
        if any(f"{name}={value}" in row.fix for name, value in environment.items()):
            continue  # the plan has mended it
        yield Hit(
            severity=row.severity,
            observed=row.note or row.title,
            required="another combination" if row.severity == "blocker" else row.fix,
            fix=row.fix,
            title=row.title,
            source=row.source,
        )


@rule("engine.alternative")
def _alternative(case: Case) -> Iterator[Hit]:
    if case.host.gpu_bytes or not case.model.gguf or not case.host.memory_bytes:
        return
    found = prediction.alternative(case.host, case.model)
    if found is not None:
        yield Hit(
            observed=f"a GGUF file that memory holds: {found[0]}",
            required=f"{found[1]}; this product does not provision them",
        )


@rule("engine.kv_dtype")
def _kv_dtype(case: Case) -> Iterator[Hit]:
    asked = case.wishes.kv_dtype == "fp8"
    low = case.host.capability is not None and case.host.capability[:1] in ("7", "8")
    if asked and not case.host.gpu_bytes:
        yield Hit(
            severity="warning",
            observed="kimi_kv_dtype: fp8, no GPU",
            required="bf16",
            fix="remove kimi_kv_dtype: without GPUs the cache is bf16",
        )
    elif asked and low and not case.choice.hybrid:
        yield Hit(
            severity="blocker",
            observed=f"kimi_kv_dtype: fp8, compute capability {case.host.capability}",
            required="compute capability 9.0",
            fix="set kimi_kv_dtype to auto or bf16",
        )


@rule("engine.kv_dtype_chosen")
def _kv_chosen(case: Case) -> Iterator[Hit]:
    auto = case.wishes.auto("kv_dtype") and "kv-cache-dtype" not in case.wishes.engine_args
    if auto and case.budget.kv_dtype == "fp8":
        yield Hit(
            observed=f"{case.budget.kv_tokens} tokens at 8 bit",
            required=f"{case.budget.context} tokens of context",
            fix="set kimi_kv_dtype to bf16 for a shorter context without rounding",
        )


@rule("engine.tight")
def _tight(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    usual = case.choice.engine.gpu_memory_utilization or 0.9
    if card and not case.choice.hybrid and card.utilization > usual:
        yield Hit(
            observed=f"gpu-memory-utilization {card.utilization}, "
            f"max-num-batched-tokens {card.batched_tokens}, context {case.budget.context}",
            required=f"{usual} and 8192 on GPUs with more memory",
            fix="use GPUs with more memory for longer contexts; where the start ends with `CUDA "
            "out of memory`, lower kimi_concurrency (max-num-seqs) or add enforce-eager: true",
        )


@rule("engine.sequences")
def _sequences(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    many = case.flags.get("max-num-seqs")
    if card is None or case.choice.hybrid:
        return
    wanted = -(-int(case.wishes.concurrency) // (case.budget.instances * card.data))
    if wanted > card.sequences and "max-num-seqs" not in case.wishes.engine_args:
        yield Hit(
            observed=f"kimi_concurrency: {case.wishes.concurrency}; so full GPUs have no room for "
            "the sampler of more",
            required=f"max-num-seqs {card.sequences}: the others wait",
            fix="lower kimi_concurrency, or use GPUs with more memory",
            wording="wait",
        )
    elif isinstance(many, int) and many > 512 and card.memory < 100 << 30:
        yield Hit(
            observed=f"max-num-seqs {many}",
            required="64 on cards of 80 GB",
            fix="lower kimi_concurrency, or remove max-num-seqs from kimi_engine_args",
        )


@rule("engine.reasoning")
def _reasoning(case: Case) -> Iterator[Hit]:
    if case.model.reasoning_parser and case.heavy:
        yield Hit(
            observed=f"--reasoning-parser {case.model.reasoning_parser}: reasoning comes apart "
            "from the answer",
            required="clients allow 1,024 tokens and more, and look for an empty content",
        )


@rule("engine.speculative")
def _speculative(case: Case) -> Iterator[Hit]:
    if case.flags.get("speculative-config") and case.flags.get("enable-prefix-caching"):
        yield Hit(
            observed="speculative-config with enable-prefix-caching",
            required="both reported as active in the engine's log",
        )


@rule("engine.override")
def _override(case: Case) -> Iterator[Hit]:
    best, reason = selection.preferred(
        case.host, case.wishes, case.catalogue, case.model, case.choice.weights_format
    )
    if not case.wishes.auto("engine") and case.wishes.engine != best:
        yield Hit(
            observed=f"kimi_engine: {case.wishes.engine}",
            required=f"the planner would choose {best}: {reason}",
            fix="set kimi_engine to auto",
        )


@rule("weights.format_override")
def _format_override(case: Case) -> Iterator[Hit]:
    own, asked = case.model.native_format, case.choice.weights_format
    if asked != own and asked in case.model.formats:
        row = next((r for r in case.model.published if r.format == asked), None)
        yield Hit(
            observed=f"kimi_weights_format: {asked}" + (f" ({row.repo})" if row else ""),
            required=f"{own} is what the makers publish",
            fix="set kimi_weights_format to auto",
        )
