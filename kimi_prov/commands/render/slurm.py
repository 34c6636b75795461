"""`kimi-prov render slurm`: jobs for a cluster of SLURM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.render.folder import Kind
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.render.slurm import findings, jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings


def kind() -> Kind:
    """Return what a folder of jobs is rendered by."""
    return Kind(jobs.KIND, _require, findings.of_job, _findings, jobs.rendered, _told)


def _require(settings: Settings) -> None:
    if settings.slurm_root is None:
        raise UserError(
            "kimi_slurm_root is not set: it is the folder on the cluster's shared file system",
            fix="give  --root /project/ab12/kimi , or kimi_slurm_root in --vars FILE",
        )


def _findings(
    _name: str,
    plan: Mapping[str, Any],
    settings: Settings,
    _facts: Mapping[str, Any],
    _catalogue: Catalogue,
) -> Sequence[Finding]:
    return findings.of_plan(plan, settings)


def _told(folder: Path, notes: int) -> str:
    found = [f"{notes} notes on what a job lacks are in README.md there"] if notes else []
    found += [f"next:  kimi-prov submit {clean_text.quote_word(folder)}"]
    return "\n".join([*found, "       on the login node, or from here with --login USER@HOST"])
