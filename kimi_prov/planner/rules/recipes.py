"""Rules about layouts over several hosts: whether anybody said that this one ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.catalog import groups
from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.catalog.groups import GroupLayout, GroupRecipe
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
    """Return what was published of just this layout over so many hosts and said to have answered.

    `layout` is the plan's `parallel`; `gpu_name` the catalogue's.
    """
    given = make_layout(model, weights_format, engine, gpu_name, hosts, layout)
    return groups.find_proven(catalogue.groups, given)


def make_layout(
    model: str,
    weights_format: str,
    engine: str,
    gpu_name: str | None,
    hosts: int,
    layout: Mapping[str, Any],
) -> GroupLayout:
    """Name what is to run over several hosts by the plan's `parallel`."""
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
    """Name the plan's layout; None for one host, and for models that tests make up."""
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
    given = _plan_layout(context)
    for row in groups.find_proven(context.catalogue.groups, given) if given else ():
        yield RuleResult(
            observed=f"{given.text if given else ''} over {row.hosts} hosts: {row.title}"
            + _format_figures(row),
            required=row.note or "as its source has it",
            source=format_dated_source(row),
        )


@register_rule("group.unproven")
def _check_unproven_layout(context: PlanContext) -> Iterator[RuleResult]:
    given = _plan_layout(context)
    if given is None or groups.find_proven(context.catalogue.groups, given):
        return
    near = groups.find_nearest(context.catalogue.groups, given)
    known = "nobody published a layout like it"
    if near is not None:
        word = "ran" if near.ran else "was written down, no run told"
        known = (
            f"the nearest that {word}: {near.title} ({groups.format_sizes(near)}; {near.source})"
        )
    yield RuleResult(
        observed=f"{given.text} over {given.hosts} hosts with {given.gpu or 'no GPUs'}, "
        f"{given.model} in {given.weights_format}; {known}",
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
