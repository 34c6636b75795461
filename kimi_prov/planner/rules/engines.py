"""Rules about the engine: flags that it does not take, combinations that are known to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import Combination
from kimi_prov.planner.engine import selection
from kimi_prov.planner.rules.context import Case, Hit, rule
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule(
    "engine.flag",
    "The engine of this version does not take a flag",
    "kimi_prov/catalog/flags.yaml: the parsers of the wheels",
)
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
                "blocker",
                observed=shown,
                required=f"a flag of {own.name} {own.version}{reason}",
                fix=f"remove it; instead: {instead}",
                title=f"{own.name} {own.version} does not take --{flag}",
                source=state.source,
            )
        elif state.status == "deprecated":
            yield Hit(
                "warning",
                observed=shown,
                required=f"instead: {instead}",
                fix=f"remove it; instead: {instead}",
                title=f"--{flag} goes away with a later {own.name}",
                source=state.source,
            )


@rule(
    "engine.known_broken",
    "This combination is known not to work",
    "kimi_prov/catalog/broken.yaml",
)
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
            row.severity,
            observed=row.note or row.title,
            required="another combination" if row.severity == "blocker" else row.fix,
            fix=row.fix,
            title=row.title,
            source=row.source,
        )


@rule(
    "engine.alternative",
    "llama.cpp and ik_llama.cpp would serve this model on this machine without a GPU",
    "13.4 tokens/s of Kimi-K2 IQ2_KL on one EPYC 9965 (ik_llama.cpp issue 612)",
)
def _alternative(case: Case) -> Iterator[Hit]:
    if case.host.gpu_bytes or not case.model.gguf or not case.host.memory_bytes:
        return
    found = prediction.alternative(case.host, case.model)
    if found is not None:
        yield Hit(
            "info",
            observed=f"a GGUF file that memory holds: {found[0]}",
            required=f"{found[1]}; this product does not provision them",
        )


@rule(
    "engine.kv_dtype",
    "The inventory asks for a cache that the engine does not keep on these GPUs",
    "vLLM keeps an 8-bit MLA cache on compute capability 9.0 and later",
)
def _kv_dtype(case: Case) -> Iterator[Hit]:
    asked = case.wishes.kv_dtype == "fp8"
    low = case.host.capability is not None and case.host.capability[:1] in ("7", "8")
    if asked and not case.host.gpu_bytes:
        yield Hit(
            "warning",
            observed="kimi_kv_dtype: fp8, no GPU",
            required="bf16",
            fix="remove kimi_kv_dtype: without GPUs the cache is bf16",
        )
    elif asked and low and not case.choice.hybrid:
        yield Hit(
            "blocker",
            observed=f"kimi_kv_dtype: fp8, compute capability {case.host.capability}",
            required="compute capability 9.0",
            fix="set kimi_kv_dtype to auto or bf16",
        )


@rule(
    "engine.kv_dtype_chosen",
    "An 8-bit cache was chosen: a 16-bit one would not hold the context",
    "fp8 halves the bytes of a token",
)
def _kv_chosen(case: Case) -> Iterator[Hit]:
    auto = case.wishes.auto("kv_dtype") and "kv-cache-dtype" not in case.wishes.engine_args
    if auto and case.budget.kv_dtype == "fp8":
        yield Hit(
            "info",
            observed=f"{case.budget.kv_tokens} tokens at 8 bit",
            required=f"{case.budget.context} tokens of context",
            fix="set kimi_kv_dtype to bf16 for a shorter context without rounding",
        )


@rule(
    "engine.tight",
    "The GPUs are filled to the brim: small passes and little working memory were chosen",
    "reference 004, troubles 7 to 9: 0.9 of 80 GB leaves -3.32 GiB for the cache, 0.95 leaves 0.64",
)
def _tight(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    usual = case.choice.engine.gpu_memory_utilization or 0.9
    if card and not case.choice.hybrid and card.utilization > usual:
        yield Hit(
            "warning",
            observed=f"gpu-memory-utilization {card.utilization}, "
            f"max-num-batched-tokens {card.batched_tokens}, context {case.budget.context}",
            required=f"{usual} and 8192 on GPUs with more memory",
            fix="use GPUs with more memory for longer contexts; where the start ends with `CUDA "
            "out of memory`, lower kimi_concurrency (max-num-seqs) or add enforce-eager: true",
        )


@rule(
    "engine.sequences",
    "So many requests at once exhaust the GPUs in the sampler's warm-up",
    "reference 004, trouble 7: `CUDA out of memory` at 1024 sequences, 64 served",
)
def _sequences(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    many = case.flags.get("max-num-seqs")
    if card is None or case.choice.hybrid:
        return
    wanted = -(-int(case.wishes.concurrency) // (case.budget.instances * card.data))
    if wanted > card.sequences and "max-num-seqs" not in case.wishes.engine_args:
        yield Hit(
            "warning",
            observed=f"kimi_concurrency: {case.wishes.concurrency}; so full GPUs have no room for "
            "the sampler of more",
            required=f"max-num-seqs {card.sequences}: the others wait",
            fix="lower kimi_concurrency, or use GPUs with more memory",
            title="Some of the requests asked for will wait",
        )
    elif isinstance(many, int) and many > 512 and card.memory < 100 << 30:
        yield Hit(
            "warning",
            observed=f"max-num-seqs {many}",
            required="64 on cards of 80 GB",
            fix="lower kimi_concurrency, or remove max-num-seqs from kimi_engine_args",
        )


@rule(
    "engine.reasoning",
    "The model thinks before it answers: a small token budget is used up by reasoning",
    "reference 004, trouble 10; reference 002: `content` is null until the reasoning has ended",
)
def _reasoning(case: Case) -> Iterator[Hit]:
    if case.model.reasoning_parser and case.heavy:
        yield Hit(
            "info",
            observed=f"--reasoning-parser {case.model.reasoning_parser}: reasoning comes apart "
            "from the answer",
            required="clients allow 1,024 tokens and more, and look for an empty content",
        )


@rule(
    "engine.speculative",
    "Speculative decoding and prefix caching may get in each other's way",
    "reference 002, caveats: look in the engine's log that both are active",
)
def _speculative(case: Case) -> Iterator[Hit]:
    if case.flags.get("speculative-config") and case.flags.get("enable-prefix-caching"):
        yield Hit(
            "info",
            observed="speculative-config with enable-prefix-caching",
            required="both reported as active in the engine's log",
        )


@rule(
    "engine.override",
    "The inventory asks for another engine than the planner would choose",
    "the inventory wins over the planner",
)
def _override(case: Case) -> Iterator[Hit]:
    best, reason = selection.preferred(
        case.host, case.wishes, case.catalogue, case.model, case.choice.weights_format
    )
    if not case.wishes.auto("engine") and case.wishes.engine != best:
        yield Hit(
            "info",
            observed=f"kimi_engine: {case.wishes.engine}",
            required=f"the planner would choose {best}: {reason}",
            fix="set kimi_engine to auto",
        )


@rule(
    "weights.format_override",
    "The inventory asks for another number format than the model's own",
    "the model was trained, or quantised by its makers, in its own format",
)
def _format_override(case: Case) -> Iterator[Hit]:
    own, asked = case.model.native_format, case.choice.weights_format
    if asked != own and asked in case.model.formats:
        row = next((r for r in case.model.published if r.format == asked), None)
        yield Hit(
            "info",
            observed=f"kimi_weights_format: {asked}" + (f" ({row.repo})" if row else ""),
            required=f"{own} is what the makers publish",
            fix="set kimi_weights_format to auto",
        )
