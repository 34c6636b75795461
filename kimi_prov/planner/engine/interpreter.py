"""Chooses the Python that an engine is installed for: the machine's own, or a bundled one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.facts.host import Python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings

# The usual path, for a machine without facts of its interpreters.
_USUAL_ARCH = "x86_64"


class PinnedSoftware(Protocol):
    """The catalogue's row that needs an interpreter: an engine, or a web UI."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def variant(self) -> str:
        """Its build."""

    @property
    def version(self) -> str:
        """Its version."""

    @property
    def python(self) -> Sequence[str]:
        """Versions of Python that it is made for."""

    @property
    def source(self) -> str:
        """The source of the row."""

    def lock_name(self, python: str) -> str:
        """Return the name of the lock file for a Python such as "3.11"."""


class InterpreterChoice(NamedTuple):
    """An interpreter, the reason, and the bundled build to install, if any."""

    python: Python
    reason: str
    build: Interpreter | None = None


def choose_interpreter(
    host: Host, engine: PinnedSoftware, catalogue: Catalogue, findings: Findings
) -> InterpreterChoice:
    """Find an interpreter for which there is a lock: the machine's own, else a bundled build.

    The machine's own comes first: its distribution maintains it.
    """
    locked = [v for v in engine.python if engine.lock_name(v) in catalogue.locks]
    own = next((python for python in host.pythons if python.version in locked), None)
    if own is not None:
        findings.add(
            "python.lock",
            severity="pass",
            observed=f"{own.path}: {own.version}",
            required=_format_versions(locked),
            source=f"kimi_prov/catalog/locks/{engine.lock_name(own.version)}",
        )
        return InterpreterChoice(own, "the machine's own, for which the packages are pinned")
    if not host.pythons:
        # A spec sheet names no interpreter: assume the system's own.
        fallback = Python("/usr/bin/python3", locked[0] if locked else engine.python[0])
        return InterpreterChoice(fallback, "supposed: nobody has described the machine's own")
    if not locked:
        return InterpreterChoice(
            _choose_unpinned(host, engine, findings), "no packages are pinned for any"
        )
    build = next(
        (row for row in reversed(catalogue.pythons) if _is_suitable(row, host, locked)), None
    )
    if build is None:
        # A quoted machine is not installed yet: its system can still be chosen.
        findings.add(
            "python.lock",
            severity="warning" if host.quoted else "blocker",
            names={"engine": engine.name, "version": engine.version, "variant": engine.variant},
            observed=f"{_describe_present(host)}; "
            f"{_describe_missing_build(host, catalogue, locked)}",
            required=_format_versions(locked),
            fix=f"install Python {locked[-1]} on the machine, or add a build of it to pythons.yaml "
            "of a catalogue of your own",
            source=engine.source,
        )
        return InterpreterChoice(
            host.pythons[0], "the machine's own: none that the packages are pinned for"
        )
    source = f"CPython {build.version} (python-build-standalone {build.build})"
    findings.add(
        "python.lock",
        severity="pass",
        wording="brought",
        names={"version": build.version},
        observed=f"{_describe_present(host)}; {source} is brought to {build_directory(build)}, and "
        "the machine's own is left alone",
        required=_format_versions(locked),
        source=f"{build.source}; kimi_prov/catalog/locks/{engine.lock_name(build.minor)}",
    )
    have = ", ".join(dict.fromkeys(python.version for python in host.pythons))
    required = _format_versions(locked)
    because = f"{source} is brought: the packages are pinned for {required}, not for {have}"
    return InterpreterChoice(Python(build_executable(build), build.minor), because, build)


def build_directory(build: Interpreter) -> str:
    """Return the directory of a build on the machine."""
    return f"{paths.PYTHONS}/{build.name}"


def build_executable(build: Interpreter) -> str:
    """Return the path of a build's interpreter on the machine."""
    return f"{build_directory(build)}/{build.key}/bin/python{build.minor}"


def _is_suitable(build: Interpreter, host: Host, locked: Sequence[str]) -> bool:
    glibc = host.system.glibc
    return (
        build.status == "available"
        and build.minor in locked
        and build.arch == (host.system.arch or _USUAL_ARCH)
        and (glibc is None or parse_version(glibc) >= parse_version(build.glibc))
    )


def _describe_missing_build(host: Host, catalogue: Catalogue, locked: Sequence[str]) -> str:
    """Return why no build of the catalogue fits."""
    rows = [row for row in catalogue.pythons if row.minor in locked and row.status == "available"]
    arch = host.system.arch or _USUAL_ARCH
    here = [row for row in rows if row.arch == arch]
    if not rows:
        return f"the catalogue has no build of {_format_versions(locked)}"
    if not here:
        return f"the catalogue has no build of {_format_versions(locked)} for {arch}"
    oldest = min((row.glibc for row in here), key=parse_version)
    return f"glibc {host.system.glibc}, a build of {_format_versions(locked)} wants {oldest}"


def _choose_unpinned(host: Host, engine: PinnedSoftware, findings: Findings) -> Python:
    """Return a Python that the engine supports, although no packages are pinned for it."""
    python = next((p for p in host.pythons if p.version in engine.python), None)
    if python is None:
        findings.add(
            "python.engine",
            names={"engine": engine.name, "version": engine.version},
            observed=_describe_present(host),
            required=_format_versions(engine.python),
            fix=f"install Python {engine.python[0]} on the machine",
            source=engine.source,
        )
    return python or host.pythons[0]


def _describe_present(host: Host) -> str:
    """List one path of each version: python3 is nearly always python3.N as well."""
    paths_of = {python.version: python.path for python in reversed(host.pythons)}
    return ", ".join(f"{path} ({version})" for version, path in reversed(paths_of.items()))


def _format_versions(versions: Sequence[str]) -> str:
    return f"Python {' or '.join(versions)}"
