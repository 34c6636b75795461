"""`kimi-prov connect` to a rendered folder: the way fits what it was rendered for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.commands import connect, kubernetes_connect, rendered
from kimi_prov.errors import UserError
from kimi_prov.render import frame
from kimi_prov.render.kubernetes.folder import KIND

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.console.output import Output
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target


@dataclass(frozen=True)
class FolderOptions:
    """The options: `login` and `job` of a SLURM cluster, `target` and `key_file` of Kubernetes."""

    login: str | None
    job: int | None
    target: Target
    key_file: Path | None
    port: int | None
    every: float

    def given(self) -> list[str]:
        """Return the options that were given of those that a folder alone has."""
        values = {
            "--login": self.login,
            "--job": self.job,
            "--context": self.target.context,
            "--namespace": self.target.namespace,
        }
        return [name for name, value in values.items() if value is not None]


def run(path: Path, chosen: FolderOptions, output: Output) -> ExitCode:
    """Connect through kubectl or through ssh. Raises UserError for options of the other."""
    if frame.kind_of(path) == KIND:
        for name, value in (("login", chosen.login), ("job", chosen.job)):
            if value is not None:
                raise UserError(
                    f"--{name}: belongs to a folder for SLURM, and {path} is none",
                    fix="leave it out",
                )
        return kubernetes_connect.run(
            path,
            chosen.target,
            output,
            key_file=chosen.key_file,
            port=chosen.port,
            every_s=chosen.every,
        )
    rendered.no_cluster_options(path, chosen.target, chosen.key_file)
    number = None if chosen.job is None else str(chosen.job)
    return connect.run(path, chosen.login, number, output, port=chosen.port, every_s=chosen.every)
