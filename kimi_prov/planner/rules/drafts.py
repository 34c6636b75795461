"""Rules about drafts: what one would gain for the load, or loses, and the context that it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.engine import speculative
from kimi_prov.planner.memory import gpu as gpu_memory
from kimi_prov.planner.memory.context import choose_context
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import VLLM
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.catalog.models import Draft
    from kimi_prov.planner.throughput.inputs import Range

_HYBRID_SOURCE = (
    "github.com/kvcache-ai/ktransformers/pull/2088: 28 tokens/s without a draft, 27 with one"
)


@register_rule("engine.draft_gain")
def _check_draft_gain(context: PlanContext) -> Iterator[RuleResult]:
    """Judge the draft that is planned, or say which one would gain."""
    if context.settings.speculative == "off" or not context.heavy:
        return
    known = [draft for draft in context.catalogue.drafts if context.model.name in draft.models]
    planned = context.plan["speculative"]
    if planned is not None:
        yield from _judge_planned(context, context.catalogue.draft(planned["name"]))
    elif context.settings.auto("speculative") and known:
        if context.choice.hybrid:
            yield RuleResult(
                severity="info",
                wording="hybrid",
                observed="no draft",
                required="GPUs that hold all weights, for a draft to gain",
                source=_HYBRID_SOURCE,
            )
        else:
            yield from _offer_best(context, known)


def _judge_planned(context: PlanContext, draft: Draft) -> Iterator[RuleResult]:
    gain = _estimate_gain(context, draft)
    if gain is not None and gain.expected < 1:
        yield RuleResult(
            severity="warning",
            names={"gain": _format_gain(gain)},
            observed=f"{draft.name} with {_describe_load(context)}",
            required="more than 1",
            fix="set kimi_speculative to off",
            source=draft.source,
        )


def _offer_best(context: PlanContext, known: list[Draft]) -> Iterator[RuleResult]:
    """Offer the draft of the largest gain that this engine loads."""
    gains = [
        (gain.expected, gain, draft)
        for draft in known
        if speculative.can_load(draft, context.choice.engine)
        and (gain := _estimate_gain(context, draft)) is not None
    ]
    if not gains:
        return
    expected, gain, draft = max(gains, key=lambda row: row[0])
    if expected <= 1:
        yield RuleResult(
            severity="info",
            wording="none",
            observed=f"no draft, {_describe_load(context)}",
            required=f"{draft.name}: {_format_gain(gain)} times as many tokens a second",
            source=draft.source,
        )
        return
    room = _describe_room(context, draft)
    yield RuleResult(
        severity="info",
        names={"gain": _format_gain(gain)},
        observed=f"no draft, {_describe_load(context)}",
        required=f"{draft.name}, with room for {room}; no pair of runs on such GPUs shows a gain "
        "for this load",
        fix=f"set kimi_speculative to {draft.name}, and compare by `kimi-prov bench`",
        source=draft.source,
    )


def _estimate_gain(context: PlanContext, draft: Draft) -> Range | None:
    return prediction.estimate_draft(
        *(context.host, context.settings, context.model, context.choice, context.budget),
        *(context.place, draft),
    )


def _describe_load(context: PlanContext) -> str:
    return f"{context.settings.concurrency} request(s) at once of kind {context.settings.workload}"


def _format_gain(gain: Range) -> str:
    return f"{gain.expected:.2g} ({gain.low:.2g} to {gain.high:.2g})"


def _describe_room(context: PlanContext, draft: Draft) -> str:
    """Say how many tokens the cache holds beside a draft that is not planned."""
    gpu, budget = context.budget.gpu, context.budget
    assert gpu is not None, "asked without GPUs"  # noqa: S101
    taken, of_token = _count_draft_memory(context, draft)
    left = max(0, budget.kv_bytes - taken) // (budget.kv_bytes_per_token + of_token)
    tokens = left * gpu.decode_context * gpu.data
    return f"{tokens:,} tokens in place of {budget.kv_tokens:,} ({format_bytes(taken)} a GPU)"


def _count_draft_memory(context: PlanContext, draft: Draft) -> tuple[int, int]:
    """Count a draft's bytes on each GPU, and those of each token of the cache."""
    gpu, budget = context.budget.gpu, context.budget
    assert gpu is not None, "asked without GPUs"  # noqa: S101
    value = gpu_memory.KV_BYTES[budget.kv_dtype]
    return (
        speculative.count_draft_bytes(draft, gpu.ranks) + speculative.count_working_bytes(draft),
        speculative.count_kv_bytes_per_token(draft, value, gpu.ranks),
    )


@register_rule("engine.draft_context")
def _check_draft_context(context: PlanContext) -> Iterator[RuleResult]:
    """Compare the context with that of the same GPUs without the draft."""
    planned, gpu, budget = context.plan["speculative"], context.budget.gpu, context.budget
    if planned is None or gpu is None or budget.kv_bytes <= 0:
        return
    taken, of_token = _count_draft_memory(context, context.catalogue.draft(planned["name"]))
    tokens = (budget.kv_bytes + taken) // (budget.kv_bytes_per_token - of_token)
    without = choose_context(context.settings, context.model, VLLM, tokens * gpu.decode_context)
    if without > budget.context:
        yield RuleResult(
            observed=f"{budget.context:,} tokens with {planned['name']}",
            required=f"{without:,} tokens without it",
            fix="set kimi_speculative to off, or kimi_context to what the requests need",
        )
