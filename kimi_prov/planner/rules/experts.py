"""Rules about weights beside the routed experts that this project's kernels hold in int8."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import Workload
from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.placement import numa
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

# Prompt logprobs of the lab's tiny INT4 model, 242 tokens, against the same weights in bf16 by
# stock vLLM 0.32.0: two cores with AVX512-VNNI, 2026-11-27.
_LOSS = "logprobs of the lab's tiny model are 0.108 off in the mean, with dense bf16 0.029"


@register_rule("experts.dense")
def _check_dense(context: PlanContext) -> Iterator[RuleResult]:
    choice, settings = context.choice, context.settings
    if choice.dense == "int8":
        yield RuleResult(
            severity="warning",
            wording="int8",
            observed=f"kimi_dense_weights: int8; {_LOSS}",
            required="the weights as published, for the same answers",
            fix="set kimi_dense_weights to auto where answers matter more than speed",
        )
    elif choice.experts in ("native", "kt") and settings.auto("dense_weights"):
        now = context.plan["throughput"].get("single_tok_s", {}).get("expected")
        then = _estimate_int8_speed(context) if now else None
        if now and then and then > now:
            less = expert_backend.count_saved_bytes(
                "int8", choice.experts, context.model, settings.hosts_per_model
            )
            yield RuleResult(
                severity="info",
                observed=f"bf16: {now:g} tokens/s expected for one request",
                required=f"int8: {then:g} tokens/s expected, {format_bytes(less)} less memory an "
                f"engine; {_LOSS}",
                fix="set kimi_dense_weights to int8 where speed matters more than the last of "
                "the model's quality",
            )


def _estimate_int8_speed(context: PlanContext) -> float | None:
    """Return tokens a second of one request with int8; None without an estimate."""
    choice, where, budget = replace(context.choice, dense="int8"), context.place, context.budget
    work = Workload(choice.engine, context.model, choice.weights_format, "int8")
    spans = expert_backend.list_spans(
        context.host, context.settings, context.catalogue, work, choice.experts
    )
    # Of several requests each node gets its own; one request gets all nodes.
    if spans[0] or (spans[-1] and context.settings.concurrency == 1):
        where, budget = numa.place_over_nodes(context.host), replace(budget, instances=1)
    speeds = prediction.make_document(
        context.host,
        context.settings,
        context.model,
        choice,
        budget,
        where,
        prediction.Beside(bool(context.plan["ram_disk"]["enabled"])),
    )
    speed: float | None = speeds["single_tok_s"]["expected"]
    return speed
