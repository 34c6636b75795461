"""`init`: an inventory or a spec sheet to start from, out of the bundle and the catalogue."""

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
# A row of the catalogue answers to each of them.
DEFAULT_SYSTEM, _WITHOUT_GPUS = "gpu-server", "cpu-server"


def run(directory: Path, profile: str) -> None:
    """Write the inventory, print its files, and name the command that comes next."""
    for file in write(directory, profile):
        show(f"{clean_text.row(file)}\n")
    first = "lab up" if profile.startswith("lab") else "plan"
    say(f"next: edit what it says, then  kimi-prov {first} {clean_text.word(directory)}")
    say(f"docs: {resources.root() / 'docs'}")


def run_spec(file: Path, system: str) -> None:
    """Write a spec sheet of a server of the catalogue, and name the command that comes next."""
    from kimi_prov.catalog import loader  # noqa: PLC0415  (an inventory needs neither)
    from kimi_prov.facts import new_sheet  # noqa: PLC0415

    catalogue = loader.load()
    server = catalogue.server(system)
    _write_new(file, new_sheet.text_of(server, catalogue))
    show(f"{clean_text.row(file)}\n")
    say(f"this is {server.name}: {server.title}")
    say(f"others: --system {_WITHOUT_GPUS}, {DEFAULT_SYSTEM}, or one of  kimi-prov catalog servers")
    say(f"next: edit what it says, then  kimi-prov check {clean_text.word(file)}")


def _write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet. Raises UserError."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError(
            f"{file}: something is there already, and init overwrites nothing",
            fix="name a file that is not there yet",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file}: cannot be written: {getattr(error, 'strerror', None) or error}",
            fix="name a file in a folder that is there and that you may write to",
        ) from None


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
