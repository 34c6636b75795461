"""`kimi-prov stop` and `start`: of folders for a cluster; machines have systemctl as yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.commands import kubernetes_apply, rendered
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target


def stop(path: Path, target: Target) -> ExitCode:
    """Stop what serves. Raises UserError for an inventory, with what does it there."""
    _check(path, "stop", target)
    return kubernetes_apply.stop(path, target)


def start(path: Path, target: Target) -> ExitCode:
    """Start what was stopped. Raises UserError for an inventory, with what does it there."""
    _check(path, "start", target)
    return kubernetes_apply.start(path, target)


def _check(path: Path, command: str, target: Target) -> None:
    if not rendered.is_kubernetes(path, command, target):
        raise UserError(
            f"{path}: {command} is for a folder that `kimi-prov render kubernetes` made, and this "
            "is none",
            fix=f"on each host:  systemctl {command} kimi-serve@0",
        )
