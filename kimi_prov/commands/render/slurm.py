"""`kimi-prov render slurm`: jobs for a cluster of SLURM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.options import add_connection_options
from kimi_prov.commands.render.folder import Kind, RenderCommand, add_render_options, render
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import SLURM
from kimi_prov.errors import UserError
from kimi_prov.render.slurm import findings, jobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.errors import ExitCode
    from kimi_prov.planner.settings.parsing import Settings


@click.command("slurm", cls=RenderCommand)
@add_render_options
@click.option("--root", "slurm_root", metavar="DIR", help="Folder on the shared file system.")
@add_connection_options
def render_slurm(**options: Any) -> ExitCode:  # noqa: ANN401
    """Write jobs for a SLURM cluster: environment, weights, server, tuner, benchmark, checks.

    TARGET is data that describes one node: a spec sheet, a facts file that `probe` wrote there, or
    a recorded folder. The same input gives the same bytes; files that were changed by hand since
    stay. Nothing is written where the plan has a blocker: exit 3.
    """
    kind = Kind(SLURM, _require, findings.adjust_settings, _find, jobs.render_folder, _describe)
    return render(kind, **options)


def _require(settings: Settings) -> None:
    if settings.slurm_root is None:
        raise UserError(
            "kimi_slurm_root is not set: it is the folder on the cluster's shared file system",
            fix="give  --root /project/ab12/kimi , or kimi_slurm_root in --vars FILE",
        )


def _find(
    _name: str,
    plan: MachinePlan,
    settings: Settings,
    facts: Facts,
    catalogue: Catalogue,
) -> Sequence[Finding]:
    return findings.select_findings(plan, settings, facts, catalogue)


def _describe(folder: Path, notes: int) -> str:
    lines = [f"{notes} notes on what a job lacks are in README.md there"] if notes else []
    lines += [f"next:  kimi-prov submit {clean_text.quote_word(folder)}"]
    return "\n".join([*lines, "       on the login node, or from here with --login USER@HOST"])
