"""`kimi-prov render cloud-init` and `render skypilot`: a machine that brings itself up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.render.folder import Kind
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.render.cloud import findings, folders, ranking, variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render import frame

_NEXT = {
    folders.CLOUD_INIT: "./check.sh and ./launch.sh there, or user-data by any other way",
    folders.SKYPILOT: "./launch.sh there",
}


def cloud_init() -> Kind:
    """Return what a folder of user data is rendered by."""
    return _kind(folders.CLOUD_INIT)


def skypilot() -> Kind:
    """Return what a folder of SkyPilot's tasks is rendered by."""
    return _kind(folders.SKYPILOT)


def _kind(name: str) -> Kind:
    def told(folder: Path, notes: int) -> str:
        found = [f"{notes} notes are in README.md there"] if notes else []
        return "\n".join([*found, f"next:  cd {clean_text.quote_word(folder)}, then {_NEXT[name]}"])

    def found(
        _name: str,
        plan: Mapping[str, Any],
        settings: Settings,
        _facts: Mapping[str, Any],
        catalogue: Catalogue,
    ) -> Sequence[Finding]:
        rows = findings.of_plan(plan, settings, ranking.chosen(settings, catalogue).kinds)
        if name == folders.CLOUD_INIT:
            rows += findings.size(settings.cloud, folders.metadata(settings))
        return rows

    def rendered(
        target: str,
        plan: Mapping[str, Any],
        rows: Sequence[Finding],
        settings: Settings,
        _facts: Mapping[str, Any],
        catalogue: Catalogue,
    ) -> frame.Rendered:
        files_of = folders.cloud_init if name == folders.CLOUD_INIT else folders.skypilot
        return files_of(target, plan, rows, settings, ranking.chosen(settings, catalogue))

    return Kind(name, _require, variables.of_machine, found, rendered, told)


def _require(settings: Settings) -> None:
    if settings.hosts_per_model > 1:
        raise UserError(
            "kimi_hosts_per_model: one machine brings itself up, and several wait for each other",
            fix="remove it, or provision machines that are there with  kimi-prov apply INVENTORY",
        )
