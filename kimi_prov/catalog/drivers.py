"""Drivers, CUDA and PyTorch in the catalogue. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.names import PathName  # noqa: TC001  (read at run time)
from kimi_prov.catalog.versions import parse_version

# The folder of NVIDIA's repository by architecture.
_FOLDERS = {"x86_64": "x86_64", "aarch64": "sbsa", "arm64": "sbsa"}


@dataclass(frozen=True)
class Cuda(Row):
    """A CUDA version and the drivers that run it.

    `compatible_driver` runs its machine code by minor-version compatibility, which leaves PTX out.
    """

    name: str
    driver: str
    compatible_driver: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class DriverRule(Row):
    """A rule about drivers, in words, with the branch that it needs, if any."""

    name: str
    text: str
    source: str
    confidence: Confidence
    driver_branch: int | None = None


@dataclass(frozen=True)
class DriverPackages(Row):
    """Packages of a driver branch on a distribution; `{branch}` stands for the branch."""

    name: str
    packages: tuple[str, ...]
    source: str
    confidence: Confidence
    note: str | None = None


@dataclass(frozen=True)
class DriverRelease(Row):
    """The version of a driver branch that is installed by default."""

    name: str
    version: PathName
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Repository(Row):
    """NVIDIA's package repository for a distribution, and the names of its packages.

    `{branch}` stands for the branch; `a|b` for the first of them that has the version: names have
    lost and kept their branch differently. `fabric` is for machines with switches, `imex` for those
    that have that service already. `fingerprint` is of the primary key in `key`.
    """

    name: str
    id: str
    version: str
    url: str
    key: PathName
    fingerprint: str
    userland: tuple[str, ...]
    open_module: tuple[str, ...]
    closed_module: tuple[str, ...]
    fabric: tuple[str, ...]
    source: str
    confidence: Confidence
    imex: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchBuild(Row):
    """The torch and CUDA of a range of engine versions."""

    name: str
    engine: str
    source: str
    confidence: Confidence
    torch: str | None = None
    cuda: str | None = None
    driver_branch: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Drivers:
    """The matrix of drivers, CUDA and PyTorch."""

    cuda: tuple[Cuda, ...] = ()
    rules: tuple[DriverRule, ...] = ()
    packages: tuple[DriverPackages, ...] = ()
    torch: tuple[TorchBuild, ...] = ()
    releases: tuple[DriverRelease, ...] = ()
    repositories: tuple[Repository, ...] = ()

    def branch_for(self, cuda: str) -> int | None:
        """Return the driver branch that a CUDA version was made for; None if unknown."""
        row = next((row for row in self.cuda if row.name == cuda), None)
        return next(iter(parse_version(row.driver)), None) if row else None

    def release(self, branch: int) -> str | None:
        """Return the version of a branch to install; None where the catalogue pins none."""
        row = next((row for row in self.releases if row.name == str(branch)), None)
        return row.version if row else None

    def repository(
        self, system: str | None, version: str | None, arch: str | None = None
    ) -> Repository | None:
        """Return NVIDIA's repository for a distribution's release; None without one.

        `arch`: NVIDIA keeps servers with ARM processors in a repository of the same packages and
        the same key; of an unknown architecture it is that for x86-64.
        """
        folder = _FOLDERS.get(arch or "x86_64")
        rows = (row for row in self.repositories if (row.id, row.version) == (system, version))
        row = next(rows, None)
        return replace(row, url=row.url.replace("x86_64", folder)) if row and folder else None
