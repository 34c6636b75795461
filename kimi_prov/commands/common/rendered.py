"""Tells whether a PATH is a rendered folder, and of which kind, or an inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import CLOUD_INIT, KUBERNETES, SKYPILOT, SLURM
from kimi_prov.errors import UserError
from kimi_prov.render import folder_writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.operate.kubernetes.kubectl import Target


def is_kubernetes(
    path: Path, command: str, target: Target, of_inventory: Mapping[str, Any] | None = None
) -> bool:
    """Whether the path is a folder for Kubernetes. Raises UserError for another kind of folder.

    `of_inventory`: given options by name that only an inventory has.
    """
    kind = folder_writer.find_kind(path)
    if kind == KUBERNETES:
        given = [name for name, value in (of_inventory or {}).items() if value]
        if given:
            raise UserError(
                f"--{given[0].replace('_', '-')}: belongs to an inventory, and {path} was rendered "
                "for Kubernetes",
                fix="leave it out",
            )
        return True
    if kind is not None:
        if kind in (CLOUD_INIT, SKYPILOT):
            raise UserError(
                f"{path}: the folder was rendered for {clean_text.clean_line(kind)}, and "
                f"{command} is for an inventory or a folder for Kubernetes",
                fix="run ./launch.sh in it: the machine runs kimi-prov itself",
            )
        known = kind == SLURM
        raise UserError(
            f"{path}: the folder was rendered for {clean_text.clean_line(kind)}, and {command} "
            "is for an inventory or a folder for Kubernetes",
            fix="kimi-prov submit, jobs, connect, chat and cancel are for such a folder"
            if known
            else "use the version of kimi-prov that rendered it",
        )
    refuse_cluster_options(path, target)
    return False


def refuse_cluster_options(
    path: Path, target: Target, key_file: Path | None = None, ca: Path | None = None
) -> None:
    """Raise UserError where an option of a cluster was given for another path."""
    given = {
        "--context": target.context,
        "--namespace": target.namespace,
        "--api-key-file": key_file,
        "--ca": ca,
    }
    for option, value in given.items():
        if value is not None:
            raise UserError(
                f"{option}: belongs to a folder for Kubernetes, and {path} is none",
                fix="leave it out",
            )
