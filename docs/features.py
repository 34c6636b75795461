"""The table of where each feature lies: the files of all layers that carry one name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from markup import table

from kimi_prov.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
_KINDS = (".py", ".yml", ".yaml", ".md")
# A name that fewer files carry is found by looking into its folder.
_MIN_FILES = 3
# Other names that files of a feature have.
_ALIASES = {
    "diagnosis": "diagnose",
    "idle": "lifecycle",
    "key": "keys",
    "power": "lifecycle",
    "rest": "lifecycle",
    "resting": "lifecycle",
}
# Of the same name, and of another feature: SSH keys of the lab, and Ansible's own processes.
_OTHERS = {"kimi_prov/lab/keys.py", "kimi_prov/runner/cancel.py", "kimi_prov/runner/watchdog.py"}


def lines(root: Path = ROOT) -> list[str]:
    """Return the table: for each feature its command, playbook, role, packages and guide."""
    places: dict[str, list[str]] = {}
    for path in _paths(root):
        if str(path) in _OTHERS:
            continue
        places.setdefault(_feature(path), []).append(str(path))
    names = _names(root)
    rows = (
        (name, ", ".join(f"`{place}`" for place in sorted(found)))
        for name, found in sorted(places.items())
        if name in names and len(found) >= _MIN_FILES
    )
    return [*table(("feature", "files and folders"), rows)]


def _names(root: Path) -> set[str]:
    """Return what may name a feature: commands, roles, and packages of the managed machine."""
    folders = [*(root / "roles").iterdir(), *(root / "kimi_prov" / "on_host").iterdir()]
    return {name.replace("-", "_") for name in cli.commands} | {
        f.name for f in folders if f.is_dir()
    }


def _paths(root: Path) -> Iterator[Path]:
    """Give each file and folder of the layers, of a role the folder alone."""
    seen = {folder.relative_to(root) for folder in (root / "roles").iterdir() if folder.is_dir()}
    for place in ("kimi_prov", "playbooks", "docs/guides"):
        for path in (root / place).rglob("*"):
            file = path.relative_to(root)
            if path.suffix in _KINDS and not {"__pycache__", "engine_plugins"} & {*file.parts}:
                seen |= {file, *file.parents[: len(file.parts) - 2]}
    yield from seen


def _feature(path: Path) -> str:
    """Name the feature by the file's name; an action's begins with `kimi_`."""
    name = path.stem.replace("-", "_").removeprefix("kimi_")
    return _ALIASES.get(name, name)
