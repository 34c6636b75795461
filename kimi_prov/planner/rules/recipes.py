"""Rules about layouts over several hosts: whether a source says that this layout ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.catalog import groups
from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.catalog.groups import GroupLayout, GroupRecipe
from kimi_prov.contract.gpu_rows import get_gpu_name
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.catalog.loader import Catalogue


def find_proven(
    catalogue: Catalogue,
    model: str,
    weights_format: str,
    engine: str,
    gpu_name: str | None,
    hosts: int,
    layout: Mapping[str, Any],
) -> tuple[GroupRecipe, ...]:
    """Return the published rows of exactly this layout whose sources say that it answered.

    `layout` is the plan's `parallel`; `gpu_name` the catalogue's.
    """
    planned = make_layout(model, weights_format, engine, gpu_name, hosts, layout)
    return groups.find_proven(catalogue.groups, planned)


def make_layout(
    model: str,
    weights_format: str,
    engine: str,
    gpu_name: str | None,
    hosts: int,
    layout: Mapping[str, Any],
) -> GroupLayout:
    """Return the layout over several hosts from the plan's `parallel`."""
    return GroupLayout(
        model=model,
        weights_format=weights_format,
        engine=engine,
        gpu=gpu_name or "",
        hosts=hosts,
        tensor=layout["tensor"],
        pipeline=layout["pipeline"],
        data=layout["data"],
        expert=layout["expert"],
    )


def _plan_layout(context: PlanContext) -> GroupLayout | None:
    """Return the plan's layout; None for one host, and for synthetic models of tests."""
    hosts = context.settings.hosts_per_model
    if hosts == 1 or context.model.is_synthetic:
        return None
    gpu = context.host.gpu
    return make_layout(
        context.model.name,
        context.choice.weights_format,
        context.choice.engine.name,
        gpu.name if gpu else None,
        hosts,
        context.plan["parallel"],
    )


@register_rule("group.proven")
def _check_proven_layout(context: PlanContext) -> Iterator[RuleResult]:
    planned = _plan_layout(context)
    for row in groups.find_proven(context.catalogue.groups, planned) if planned else ():
        yield RuleResult(
            observed=f"{planned.text if planned else ''} over {row.hosts} hosts: {row.title}"
            + _format_figures(row),
            required=row.note or "as its source has it",
            source=format_dated_source(row),
        )


@register_rule("group.unproven")
def _check_unproven_layout(context: PlanContext) -> Iterator[RuleResult]:
    planned = _plan_layout(context)
    if planned is None or groups.find_proven(context.catalogue.groups, planned):
        return
    near = groups.find_nearest(context.catalogue.groups, planned)
    known = "nobody published a layout like it"
    if near is not None:
        word = "ran" if near.ran else "was written down, no run told"
        known = (
            f"the nearest that {word}: {near.title} ({groups.format_sizes(near)}; {near.source})"
        )
    # A layout names only GPUs of the catalogue; the machine may have others.
    gpus = planned.gpu or (get_gpu_name(context.gpus[0]) if context.gpus else None)
    yield RuleResult(
        observed=f"{planned.text} over {planned.hosts} hosts with {gpus or 'no GPUs'}, "
        f"{planned.model} in {planned.weights_format}; {known}",
        required="a run that somebody told of",
        fix="see it answer on such hosts before you buy or rely on it",
    )


def _format_figures(row: GroupRecipe) -> str:
    figures = []
    if row.single_tok_s:
        figures.append(f"{row.single_tok_s:g} tokens/s alone")
    if row.aggregate_tok_s and row.concurrency:
        figures.append(f"{row.aggregate_tok_s:g} of {row.concurrency} together")
    return f"; it wrote {', '.join(figures)}" if figures else ""
