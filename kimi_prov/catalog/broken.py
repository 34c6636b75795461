"""Combinations that are known not to work. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.versions import parse_version


@dataclass(frozen=True)
class BrokenCombination(Row):
    """A combination that is known not to work. A value that a row leaves out does not matter.

    It holds for versions from `since` on and before `before`; `tensor_parallel_above` ranks or
    fewer work, and so do so many stages, copies of attention and hosts; all of `flags` (a name, or
    `name=value`) are set, and none of `avoided_by`. `leaves_out`: flags that a plan removes from
    the inventory's, because the engine serves as well without them.
    """

    id: str
    title: str
    severity: Literal["blocker", "warning", "info"]
    engine: str
    fix: str
    source: str
    confidence: Confidence
    variant: str | None = None
    since: str | None = None
    before: str | None = None
    models: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    avoided_by: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    tensor_parallel_above: int | None = None
    pipeline_parallel_above: int | None = None
    data_parallel_above: int | None = None
    hosts_above: int | None = None
    leaves_out: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Combination:
    """A combination to check; `flags` as written, `--name` or `--name=value`."""

    engine: str
    variant: str
    version: str
    model: str
    weights_format: str
    tensor_parallel: int = 1
    capability: str | None = None
    flags: tuple[str, ...] = ()
    pipeline_parallel: int = 1
    data_parallel: int = 1
    hosts: int = 1


def match_combination(row: BrokenCombination, combination: Combination) -> bool:
    """Whether the row applies to a combination."""
    if row.engine != combination.engine:
        return False
    flags = {*combination.flags, *(flag.split("=", 1)[0] for flag in combination.flags)}
    version = parse_version(combination.version)
    return (
        row.variant in (None, combination.variant)
        and (row.since is None or version >= parse_version(row.since))
        and (row.before is None or version < parse_version(row.before))
        and (not row.models or combination.model in row.models)
        and (not row.formats or combination.weights_format in row.formats)
        and (not row.capabilities or combination.capability in row.capabilities)
        and (row.tensor_parallel_above or 0) < combination.tensor_parallel
        and (row.pipeline_parallel_above or 0) < combination.pipeline_parallel
        and (row.data_parallel_above or 0) < combination.data_parallel
        and (row.hosts_above or 0) < combination.hosts
        and flags.issuperset(row.flags)
        and flags.isdisjoint(row.avoided_by)
    )
