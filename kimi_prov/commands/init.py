"""`init`: write an inventory or a spec sheet to start from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, PATH
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources
from kimi_prov.show.output import say, show, write_whole

# Files that a running lab wrote beside a profile do not belong to it.
_GENERATED = "lab.yml"
# Each of these names is a row of the catalogue.
_DEFAULT_SYSTEM, _CPU_SYSTEM = "gpu-server", "cpu-server"


@click.command(cls=Command)
@click.argument("directory", type=PATH, required=False)
@click.option(
    "--profile", metavar="NAME", help="Such as lab or localhost; an unknown one lists all."
)
@click.option("--spec", type=PATH, metavar="FILE", help="Write a spec sheet for `check` instead.")
@click.option(
    "--system",
    metavar="NAME",
    help="What the sheet starts from, such as cpu-server or dgx-h200.",
)
@CATALOG
def init(
    directory: Path | None, profile: str | None, spec: Path | None, system: str | None
) -> None:
    """Write an inventory to start from, with its variables explained; or a spec sheet.

    An inventory needs DIRECTORY and `--profile`. A spec sheet needs `--spec FILE`: it describes a
    server of `kimi-prov catalog servers`, its comments say what to change, and `check` reads it.
    """
    if spec is not None:
        if directory is not None or profile is not None:
            raise UserError(
                "init: --spec FILE takes neither DIRECTORY nor --profile: it writes a spec sheet",
                fix=f"kimi-prov init --spec {clean_text.quote_word(spec)}",
            )
        _write_spec(spec, _DEFAULT_SYSTEM if system is None else system)
        return
    if system is not None:
        raise click.UsageError("--system belongs to --spec FILE.")
    if directory is None:
        raise click.UsageError("Missing argument 'DIRECTORY', or --spec FILE.")
    if profile is None:
        raise UserError(
            f"init {directory}: which profile? One of {', '.join(list_profiles())}",
            fix=f"kimi-prov init {clean_text.quote_word(directory)} --profile lab",
        )
    _write_inventory(directory, profile)


def _write_inventory(directory: Path, profile: str) -> None:
    """Write the inventory, print its files, and name the next command."""
    for file in _write_profile(directory, profile):
        show(f"{clean_text.clean_row(file)}\n")
    first = "lab up" if profile.startswith("lab") else "plan"
    say(f"next: edit what it says, then  kimi-prov {first} {clean_text.quote_word(directory)}")
    say(f"docs: {resources.find_root() / 'docs'}")


def _write_spec(file: Path, system: str) -> None:
    """Write a spec sheet of a server of the catalogue, and name the next command."""
    from kimi_prov.catalog import loader  # noqa: PLC0415  (an inventory needs neither)
    from kimi_prov.facts import spec_template  # noqa: PLC0415

    catalogue = loader.load_catalogue()
    server = catalogue.server(system)
    _write_new(file, spec_template.format_sheet(server, catalogue))
    show(f"{clean_text.clean_row(file)}\n")
    say(f"this is {server.name}: {server.title}")
    say(f"others: --system {_CPU_SYSTEM}, {_DEFAULT_SYSTEM}, or one of  kimi-prov catalog servers")
    say(f"next: edit what it says, then  kimi-prov check {clean_text.quote_word(file)}")


def _write_new(file: Path, text: str) -> None:
    """Write a new file. Raises UserError where it exists or cannot be written."""
    if os.path.lexists(file):
        raise UserError(
            f"{file}: it exists already, and init overwrites nothing",
            fix="name a new file",
        )
    write_whole(file, text)


def list_profiles() -> list[str]:
    """Return the names of the shipped inventories."""
    folder = resources.find_root() / "inventories"
    return sorted(p.parent.name for p in folder.glob("*/hosts.yml"))


def _write_profile(target: Path, profile: str) -> list[Path]:
    """Write the profile's inventory to `target`; return its files.

    Raises UserError where `target` exists: nothing is overwritten.
    """
    if profile not in list_profiles():
        raise UserError(
            f"--profile: there is no profile {profile!r}",
            fix=f"one of: {', '.join(list_profiles())}",
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(
            f"{target}: it exists already, and init overwrites nothing",
            fix="name a new folder",
        )
    try:
        _fill(target, resources.find_root() / "inventories" / profile)
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written: {error.strerror or error}",
            fix="name a folder that you may write to, on a disk with room",
        ) from error
    return sorted(p for p in target.rglob("*") if p.is_file())


def _fill(target: Path, source: Path) -> None:
    """Copy a profile's files into a new or empty folder; all of them, or none."""
    new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        # Not beside the folder: a shell may be in it, or a disk may be mounted on it.
        with TemporaryDirectory(dir=target, prefix=".new-") as fresh:
            for file in _list_files(source):
                copy = Path(fresh) / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
            for part in list(Path(fresh).iterdir()):
                part.rename(target / part.name)
    except BaseException:
        if new:
            shutil.rmtree(target, ignore_errors=True)
        raise


def _list_files(source: Path) -> list[Path]:
    """Return a profile's own files, without those of an editor or a running lab."""
    return [
        file
        for file in sorted(source.rglob("*"))
        if file.is_file()
        and file.name != _GENERATED
        and not any(
            part.startswith(".") or part.endswith("~") for part in file.relative_to(source).parts
        )
    ]
