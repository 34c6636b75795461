"""`init`: an inventory to start from, copied out of the bundle."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kimi_prov.console.output import say, show
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from pathlib import Path

_GENERATED = "lab.yml"


def run(directory: Path, profile: str) -> None:
    """Write the inventory, print its files, and name the command that comes next."""
    for file in write(directory, profile):
        show(f"{clean_text.row(file)}\n")
    first = "lab up" if profile.startswith("lab") else "plan"
    say(f"next: edit what it says, then  kimi-prov {first} {clean_text.word(directory)}")
    say(f"docs: {resources.root() / 'docs'}")


def profiles() -> list[str]:
    """Names of the inventories that travel with kimi-prov."""
    folder = resources.root() / "inventories"
    return sorted(p.parent.name for p in folder.glob("*/hosts.yml"))


def write(target: Path, profile: str) -> list[Path]:
    """Write the profile's inventory to `target`, whole; return its files.

    Raises UserError where something is there already: nothing is overwritten.
    """
    if profile not in profiles():
        raise UserError(
            f"--profile: there is no profile {profile!r}", fix=f"one of: {', '.join(profiles())}"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(
            f"{target}: something is there already, and init overwrites nothing",
            fix="name a folder that is not there yet",
        )
    source = resources.root() / "inventories" / profile
    # A lab that is up has written its own settings beside the profile: they are not part of it.
    ignore = shutil.ignore_patterns(_GENERATED, ".*", "*~")
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignore)
    except (OSError, shutil.Error) as error:
        raise UserError(
            f"{target}: cannot be written: {getattr(error, 'strerror', None) or error}",
            fix="name a folder that you may write to",
        ) from error
    for folder in sorted(target.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return sorted(p for p in target.rglob("*") if p.is_file())
