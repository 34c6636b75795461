"""A rendered folder as `connect` and `chat` reach it: the way fits what it was rendered for."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.commands.access import connection
from kimi_prov.commands.common import rendered
from kimi_prov.commands.kubernetes import connect
from kimi_prov.errors import UserError
from kimi_prov.render import frame
from kimi_prov.render.kubernetes.folder import KIND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.commands.access.connect_inventory import Link
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output


@dataclass(frozen=True)
class FolderOptions:
    """The options: `login` and `job` of a SLURM cluster, the others but `port` of Kubernetes."""

    login: str | None
    job: int | None
    target: Target
    key_file: Path | None
    ca: Path | None
    port: int | None
    every: float = 5.0

    def given(self) -> list[str]:
        """Return the options that were given of those that a folder alone has."""
        values = {
            "--login": self.login,
            "--job": self.job,
            "--context": self.target.context,
            "--namespace": self.target.namespace,
        }
        return [name for name, value in values.items() if value is not None]

    def of_kubernetes(self, path: Path, *, snippet: bool) -> connect.Wanted:
        """Return what is wanted of a cluster. Raises UserError for options of SLURM, or a `ca`."""
        for name, value in (("login", self.login), ("job", self.job)):
            if value is not None:
                raise UserError(
                    f"--{name}: belongs to a folder for SLURM, and {path} is none",
                    fix="leave it out",
                )
        if self.ca is not None and not snippet:
            # Nobody is told to trust it: what is asked from here is pinned to the certificate.
            raise UserError(
                f"--ca: belongs to a snippet, and none of {path} is asked for",
                fix="leave it out, or give connect --for NAME",
            )
        return connect.Wanted(path, self.target, self.key_file, self.port, self.every, self.ca)

    def of_slurm(self, path: Path) -> connection.Wanted:
        """Return what is wanted of SLURM's. Raises UserError for options of Kubernetes."""
        rendered.no_cluster_options(path, self.target, self.key_file, self.ca)
        number = None if self.job is None else str(self.job)
        return connection.Wanted(path, self.login, number, self.port, self.every)


def run(path: Path, chosen: FolderOptions, output: Output, snippet: str | None = None) -> ExitCode:
    """Connect through kubectl or through ssh. Raises UserError for options of the other."""
    if frame.kind_of(path) == KIND:
        wanted = chosen.of_kubernetes(path, snippet=snippet is not None)
        return connect.run(wanted, output, snippet)
    return connection.run(chosen.of_slurm(path), output, snippet)


@contextmanager
def link(path: Path, chosen: FolderOptions) -> Iterator[Link]:
    """Give the model that is served there, for as long as it is used. Raises UserError."""
    kubernetes = frame.kind_of(path) == KIND
    way = (
        connect.link(chosen.of_kubernetes(path, snippet=False))
        if kubernetes
        else connection.link(chosen.of_slurm(path))
    )
    with way as found:
        yield found
