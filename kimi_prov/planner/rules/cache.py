"""Rules about the cache in host memory: what it gains for prompts that repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.memory import offload
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.settings.flag_names import VLLM
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator


@register_rule("engine.cache_offload")
def _check_cache_offload(context: PlanContext) -> Iterator[RuleResult]:
    """Say what the planned cache in host memory holds, and what it gains for the stated reuse."""
    size = sum(part.size_bytes for part in context.budget.parts if part.name == offload.PART)
    if not size or VLLM.cache_offloading in context.settings.engine_args:
        return
    machine = offload.Machine(context.host, context.choice, context.budget, offload.NO_RAM_DISK)
    yield RuleResult(
        severity="info",
        names={"tokens": f"{machine.count_tokens(size // machine.factor):,}"},
        observed=f"{format_bytes(size)} of host memory, beside {context.budget.kv_tokens:,} tokens "
        "on the GPUs",
        required=_describe_gain(context) or "kimi_prefix_reuse, for an estimate of what it gains",
        fix="set kimi_cache_offload to off, or to a number of GiB",
    )


def _describe_gain(context: PlanContext) -> str | None:
    """Say how long a prompt takes whose repeated part is read back, and computed; an estimate."""
    speed = context.plan["throughput"]["prefill_tok_s"]["expected"]
    tokens = context.plan["throughput"].get("input_tokens")
    cards, reuse = prediction.make_gpus(context.host), offload.find_reuse(context.settings)
    if not speed or not tokens or cards is None or not reuse:
        return None
    read = reuse * tokens * context.budget.kv_bytes_per_token / (cards.pcie_gb_s * 1e9)
    computed = tokens / speed
    again = (1 - reuse) * computed + read
    return (
        f"a prompt of {tokens:,} tokens, {reuse:.0%} of them repeated and no longer on the GPUs: "
        f"{again:.2g} s in place of {computed:.2g} s (estimated)"
    )
