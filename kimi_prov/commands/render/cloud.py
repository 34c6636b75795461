"""`kimi-prov render cloud-init` and `render skypilot`: a machine that provisions itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.options import add_connection_options, add_options
from kimi_prov.commands.render.folder import Kind, RenderCommand, add_render_options, render
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import CLOUD_INIT, SKYPILOT
from kimi_prov.errors import UserError
from kimi_prov.render.cloud import findings, folders, images, ranking, variables
from kimi_prov.render.cloud.package import choose_package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.errors import ExitCode
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render import folder_writer

_NEXT = {
    CLOUD_INIT: "./check.sh and ./launch.sh there, or user-data by any other way",
    SKYPILOT: "./check.sh and ./launch.sh there",
}


# A decorator with the options of a cloud's machine.
_add_cloud_options = add_options(
    click.option("--cloud", "cloud", metavar="gcp|aws", help="The cloud.  [default: gcp]"),
    click.option(
        "--terms",
        "cloud_terms",
        metavar="spot-first|spot|on-demand",
        help="The terms of the rent.  [default: spot-first]",
    ),
    click.option(
        "--package",
        "cloud_package",
        metavar="URL#sha256=DIGEST",
        help="Another wheel of kimi-prov to install there.  [default: this one]",
    ),
)


@click.command("cloud-init", cls=RenderCommand)
@add_render_options
@_add_cloud_options
@add_connection_options
def render_cloud_init(**options: Any) -> ExitCode:  # noqa: ANN401
    """Write user data by which a cloud's machine provisions itself, and ends when it is idle.

    TARGET is data that describes the machine: a spec sheet, a facts file that `probe` wrote there,
    or a recorded folder. No cloud is asked; check.sh in the folder does. Nothing is written where
    the plan has a blocker: exit 3.
    """
    return render(_make_kind(CLOUD_INIT), **options)


@click.command("skypilot", cls=RenderCommand)
@add_render_options
@_add_cloud_options
@add_connection_options
def render_skypilot(**options: Any) -> ExitCode:  # noqa: ANN401
    """Write a task for SkyPilot: a machine that provisions itself, and ends when it is idle.

    TARGET is data that describes the machine: a spec sheet, a facts file that `probe` wrote there,
    or a recorded folder. No cloud is asked; check.sh in the folder does. Nothing is written where
    the plan has a blocker: exit 3.
    """
    return render(_make_kind(SKYPILOT), **options)


def _make_kind(name: str) -> Kind:
    def describe(folder: Path, notes: int) -> str:
        lines = [f"{notes} notes are in README.md there"] if notes else []
        return "\n".join([*lines, f"next:  cd {clean_text.quote_word(folder)}, then {_NEXT[name]}"])

    def require(settings: Settings) -> None:
        _require(settings, name)

    def find(
        _name: str,
        plan: MachinePlan,
        settings: Settings,
        _facts: Facts,
        catalogue: Catalogue,
    ) -> Sequence[Finding]:
        rows = findings.select_findings(
            plan, settings, ranking.choose_machines(settings, catalogue, name).kinds, name
        )
        if name == CLOUD_INIT:
            chosen = choose_package(settings, plan["weights"]["source"], catalogue)
            rows += findings.check_package(chosen)
            rows += findings.check_size(settings.cloud, folders.make_metadata(settings, chosen))
        return rows

    def make(
        target: str,
        plan: MachinePlan,
        rows: Sequence[Finding],
        settings: Settings,
        _facts: Facts,
        catalogue: Catalogue,
    ) -> folder_writer.RenderedFolder:
        machines = ranking.choose_machines(settings, catalogue, name)
        chosen = choose_package(settings, plan["weights"]["source"], catalogue)
        if name == CLOUD_INIT:
            return folders.render_cloud_init(target, plan, rows, settings, machines, chosen)
        return folders.render_skypilot(target, plan, rows, settings, machines, chosen, catalogue)

    return Kind(name, require, variables.adjust_settings, find, make, describe)


def _require(settings: Settings, launcher: str) -> None:
    images.check_image(settings, launcher)
    if settings.hosts_per_model > 1:
        raise UserError(
            "kimi_hosts_per_model: one machine provisions itself, and several wait for each other",
            fix="remove it, or provision existing machines with  kimi-prov apply INVENTORY",
        )
