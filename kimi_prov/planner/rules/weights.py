"""Rules about how weights reach the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kimi_prov.catalog.names import normalize_model
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule

if TYPE_CHECKING:
    from collections.abc import Iterator


@register_rule("weights.code_in_clear")
def _check_code_in_clear(context: PlanContext) -> Iterator[RuleResult]:
    if not context.flags.get("trust-remote-code"):
        return
    weights = context.plan["weights"]
    for part, prefix in ((weights, ""), (weights["draft"], "draft_")):
        if part is None or part["manifest"]:
            continue
        source = part["source"]
        of_hub = source.startswith("hf://")
        way = (context.settings.hf_endpoint or "") if of_hub else source
        if urlsplit(way).scheme != "http":
            continue
        name = "kimi_hf_endpoint" if of_hub else f"kimi_{prefix}weights_source"
        yield RuleResult(
            observed=f"{name}: {way}, and --trust-remote-code",
            required="https, or a manifest that was made elsewhere",
            fix=f"set kimi_{prefix}weights_manifest, or name an https address in {name}",
        )


@register_rule("weights.sibling")
def _check_sibling(context: PlanContext) -> Iterator[RuleResult]:
    """Check a name that the catalogue takes for another model of the same shape."""
    typed, repo = normalize_model(context.settings.model), context.model.repo
    sibling = next((one for one in context.model.siblings if normalize_model(one) == typed), None)
    source = context.plan["weights"]["source"]
    if sibling and repo and repo.lower() in source.lower():
        yield RuleResult(
            names={"typed": typed, "name": context.model.name},
            observed=f"the weights come from {source}",
            required=f"the weights of {sibling}; size and speed are the same",
            fix=f"set kimi_weights_source: hf://{sibling}@COMMIT",
        )
