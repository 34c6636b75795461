"""The groups of slow tests, and which of them a change asks for.

    python tests/slow_groups.py [BASE]        the groups that the changes since BASE ask for
    python tests/slow_groups.py --words NAME  what pytest is given to run a group

BASE is a commit; without it, what the branch changed since it left origin/main. Files that are not
committed count. The table is tests/slow_groups.yaml.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "slow_groups.yaml"


@dataclass(frozen=True)
class Part:
    """A file of a group: all of its slow tests that no other group names, or those with words."""

    file: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Slow tests that run together."""

    name: str
    about: str
    minutes: int | None
    parts: tuple[Part, ...]
    asked_by: tuple[str, ...]


def read_groups(table: Path = TABLE) -> list[Group]:
    """Read the table."""
    return [
        Group(
            name,
            row["about"],
            row["minutes"],
            tuple(
                Part(part) if isinstance(part, str) else Part(part["file"], tuple(part["part"]))
                for part in row["tests"]
            ),
            tuple(row["asked_by"]),
        )
        for name, row in yaml.safe_load(table.read_text()).items()
    ]


def find_group(groups: Iterable[Group], test: str) -> str | None:
    """Find the group of a test by its id; words of a part come before the rest of a file."""
    file, _, name = test.partition("::")
    rest = None
    for group in groups:
        for part in group.parts:
            if part.file != file:
                continue
            if any(word in name for word in part.words):
                return group.name
            if not part.words:
                rest = group.name
    return rest


def find_asked(groups: Iterable[Group], paths: Iterable[str]) -> dict[str, list[str]]:
    """Find the groups that changed paths ask for, each with the paths that do."""
    found: dict[str, list[str]] = {}
    changed = sorted(paths)
    for group in groups:
        places = (*group.asked_by, *(part.file for part in group.parts))
        asking = [
            path
            for path in changed
            if any(path == place or path.startswith(f"{place}/") for place in places)
        ]
        if asking:
            found[group.name] = asking
    return found


def list_changed(base: str | None) -> list[str]:
    """List the paths that changed since a commit, those that are not committed among them."""
    since = base or _git("merge-base", "origin/main", "HEAD")[0]
    return [
        *_git("diff", "--name-only", "--no-renames", since),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main(argv: Sequence[str]) -> int:
    """Print what was asked for; exit 2 for a group that is not there."""
    parser = argparse.ArgumentParser(description="Which groups of slow tests a change asks for.")
    parser.add_argument("base", nargs="?", metavar="BASE")
    parser.add_argument("--words", metavar="NAME")
    given = parser.parse_args(argv)
    groups = read_groups()
    if given.words:
        chosen = [group for group in groups if group.name == given.words]
        if not chosen:
            names = ", ".join(group.name for group in groups)
            sys.stderr.write(f"no group of slow tests is called {given.words}: {names}\n")
            return 2
        files = dict.fromkeys(part.file for part in chosen[0].parts)
        sys.stdout.write(f"{' '.join(files)} --slow-group={given.words}\n")
        return 0
    asked = find_asked(groups, list_changed(given.base))
    for name, paths in asked.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        sys.stdout.write(f"make test-slow GROUP={name}  # {paths[0]}{more}\n")
    if not asked:
        sys.stdout.write("no group of slow tests is asked for\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
