"""Says which lock files are missing, stale or cannot be installed: `make locks-check`.

Missing: what `refresh` makes and is not there, an engine that is locked for one Python and not for
the other, a default of the catalogue without a lock. Stale: made from other requirements than
`refresh` names today, or what it pins does not resolve to the same any more. Each pin needs a
wheel for the lock's Python and the engine's glibc whose digest the lock has. Newer releases are
told and are no fault. Exits 0 where nothing is wrong and all was looked up, else 1.

`check.py [--offline] [NAME...]`: without a network only what the files themselves tell.

Decides: which lock files there are, and what each is made from (whether they are current).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import LOCKS, load_catalogue
from kimi_prov.packaging import engine_plugins, lock_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.web import WebUi

# What engines are locked for: kt-kernel and Open WebUI have wheels for no other.
PYTHONS = ("3.11", "3.12")
# Of machines that run what is no engine.
_GLIBC = "2.31"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:==(.+)|[<>!~].*)?")


@dataclass(frozen=True)
class Recipe:
    """What `refresh` makes a lock from."""

    name: str
    python: str
    header: str
    requirements: tuple[str, ...]
    left_out: tuple[str, ...]


class LookUpError(Exception):
    """The index did not answer, or has nothing that fits."""


def recipes() -> list[Recipe]:
    """Ask `refresh` what it makes."""
    rows = [line.split("\t") for line in _refresh("--list").splitlines()]
    return [
        Recipe(name, python, header, tuple(asked.split()), tuple(without.split()))
        for name, python, header, asked, without in rows
    ]


def missing(
    made: Sequence[Recipe],
    present: Iterable[str],
    engines: Sequence[Engine],
    pages: Sequence[WebUi] = (),
) -> list[str]:
    """Name locks that should be there, and those that nothing makes; `present` are file names."""
    there = {name.removesuffix(".txt") for name in present}
    named = {recipe.name for recipe in made}
    found = [
        f"{name}: missing: run kimi_prov/catalog/locks/refresh {name}" for name in named - there
    ]
    found += [f"{name}: refresh does not make it" for name in there - named]
    wanted = {
        f"{_family(name)}-cp{p.replace('.', '')}"
        for name in named
        if _python(name)
        for p in PYTHONS
    }
    found += [f"{name}: the engine is locked for the other Python alone" for name in wanted - named]
    defaults = {(row.name, row.variant): row for row in reversed(engines)}
    for row in defaults.values():
        locks = [row.lock_name(python).removesuffix(".txt") for python in PYTHONS]
        locks += [f"{one.name}-{one.version}" for one in (row.plugin, row.prepared) if one]
        found += [
            f"{name}: it is a default of the catalogue"
            for name in locks
            if name not in named | wanted
        ]
    locks = [page.lock_name(p).removesuffix(".txt") for page in pages[-1:] for p in PYTHONS]
    found += [f"{name}: it is the page of the catalogue" for name in locks if name not in named]
    return sorted(found)


def stale(recipe: Recipe, text: str) -> list[str]:
    """Say where a lock is not what its recipe makes; needs no network."""
    pins = {pin.name: pin for pin in lock_files.read_pins(text)}
    found = []
    if not text.startswith(f"# {recipe.header}\n"):
        found.append("its header is another than refresh writes")
    for requirement in recipe.requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        pin = pins.get(lock_files.normalize_name(match[1])) if match else None
        if match is None or pin is None or match[2] not in (None, pin.version):
            found.append(f"it does not pin {requirement}")
    found += [f"it pins {name}, which is left out" for name in recipe.left_out if name in pins]
    found += [f"{pin.name} has no digest" for pin in pins.values() if not pin.sha256]
    plugin = engine_plugins.find_plugin(f"{recipe.name}.txt")
    if plugin is not None and engine_plugins.make_requirement(plugin) not in text:
        found.append(f"it pins another wheel than the sources of {plugin} make")
    return found


def changed(text: str, again: str) -> list[str]:
    """Compare a lock with one that was made again: what differs, package by package."""
    before, after = ({pin.name: pin for pin in lock_files.read_pins(t)} for t in (text, again))
    found = []
    for name in sorted(before | after):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old.version != new.version:
            found.append(f"{name} {old.version if old else '-'} -> {new.version if new else '-'}")
        elif old.sha256 != new.sha256:
            found.append(f"{name} {old.version}: other digests")
    return found


def uninstallable(text: str, pylock: str) -> list[str]:
    """Name pins without a wheel of a digest that the lock allows; `pylock` has what would do."""
    wheels: dict[str, set[str]] = {
        lock_files.normalize_name(package["name"]): {
            wheel["hashes"]["sha256"] for wheel in package.get("wheels", ())
        }
        for package in tomllib.loads(pylock)["packages"]
    }
    return [
        f"{pin.name} {pin.version}"
        for pin in lock_files.read_pins(text)
        if not pin.name.startswith("kimi-") and not pin.sha256 & wheels.get(pin.name, set())
    ]


def machines(
    recipe: Recipe, engines: Sequence[Engine], pages: Sequence[WebUi] = ()
) -> Iterator[tuple[str, str]]:
    """Give Python and glibc of the machines that install a lock."""
    for page in pages:
        yield from ((p, page.glibc) for p in PYTHONS if page.lock_name(p) == f"{recipe.name}.txt")
    for row in engines:
        for python in PYTHONS:
            if row.lock_name(python) == f"{recipe.name}.txt":
                yield python, row.glibc
            if row.plugin and f"{row.plugin.name}-{row.plugin.version}" == recipe.name:
                yield python, row.plugin.glibc
    if not re.search(r"-\d", recipe.name):
        yield from ((python, _GLIBC) for python in PYTHONS)


def looked_up(
    recipe: Recipe, text: str, engines: Sequence[Engine], pages: Sequence[WebUi] = ()
) -> tuple[list[str], list[str]]:
    """Resolve a lock again: its faults, and what is newer."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"{recipe.name}.txt"
        _refresh(recipe.name, into=folder)
        if made.read_text(encoding="utf-8") != text:
            what = changed(text, made.read_text(encoding="utf-8")) or ["its text alone"]
            faults.append(f"it does not resolve to the same: {', '.join(what)}")
        for python, glibc in machines(recipe, engines, pages):
            _refresh("--wheels", python, glibc, recipe.name, into=folder)
            pylock = made.with_suffix(".toml").read_text(encoding="utf-8")
            if lacking := uninstallable(text, pylock):
                who = f"Python {python} and glibc {glibc}"
                faults.append(f"no wheel with its digest for {who}: {', '.join(lacking)}")
        _refresh("--upgrade", recipe.name, into=folder)
        return faults, changed(text, made.read_text(encoding="utf-8"))


def main(argv: Sequence[str]) -> int:
    """Judge every lock, also after one that failed."""
    parser = argparse.ArgumentParser(description="Which locks are missing, stale or uninstallable.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--offline", action="store_true", help="only what the files tell")
    given = parser.parse_args(argv)
    made = recipes()
    if unknown := set(given.names) - {recipe.name for recipe in made}:
        parser.error(f"{', '.join(sorted(unknown))}: refresh makes no such lock")
    engines = load_catalogue().engines
    whole = (
        [] if given.names else missing(made, load_catalogue().locks, engines, load_catalogue().web)
    )
    sys.stdout.writelines(f"{line}\n" for line in whole)
    wrong = bool(whole)
    for recipe in made:
        path = LOCKS / f"{recipe.name}.txt"
        if path.is_file() and recipe.name in (given.names or [recipe.name]):
            faults, note = _judge(recipe, path.read_text(encoding="utf-8"), engines, given.offline)
            wrong |= bool(faults)
            said = "; ".join(f"FAILED: {fault}" for fault in faults) or note
            sys.stdout.write(f"{recipe.name}: {said}\n")
            sys.stdout.flush()
    return int(wrong)


def _judge(
    recipe: Recipe, text: str, engines: Sequence[Engine], offline: bool
) -> tuple[list[str], str]:
    faults = stale(recipe, text)
    if offline:
        return faults, "as refresh makes it"
    try:
        more, newer = looked_up(recipe, text, engines, load_catalogue().web)
    except LookUpError as error:
        return [*faults, str(error)], ""
    note = f"newer: {', '.join(newer)}" if newer else "nothing newer"
    return faults + more, f"resolves to the same, every wheel is there; {note}"


def _refresh(*words: str, into: str = "") -> str:
    environment: Mapping[str, str] = {**os.environ, **({"INTO": into} if into else {})}
    done = subprocess.run(
        [str(LOCKS / "refresh"), *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise LookUpError(f"refresh {' '.join(words)}: {said}")
    return done.stdout


def _python(name: str) -> str | None:
    match = re.search(r"-cp3(\d+)$", name)
    return f"3.{match[1]}" if match else None


def _family(name: str) -> str:
    return re.sub(r"-cp3\d+$", "", name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
