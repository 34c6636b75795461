"""What `connect` and `chat` are given: a URL, a folder that a render made, or an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kimi_prov.commands import connect_folder
from kimi_prov.commands.access import connect_inventory, served
from kimi_prov.errors import UserError
from kimi_prov.render import frame

if TYPE_CHECKING:
    from kimi_prov.commands.access.connect_inventory import ConnectOptions
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.commands.connect_folder import FolderOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def run(
    target: str,
    options: PlaybookOptions,
    of_folder: FolderOptions,
    chosen: ConnectOptions,
    output: Output,
) -> ExitCode:
    """Connect to what the target is. Raises UserError for options that belong to another."""
    kind, path = kind_of(target, options, of_folder, chosen), Path(target)
    if kind == "folder":
        connect_inventory.check(chosen, output)
        return connect_folder.run(path, of_folder, output, chosen.snippet)
    if kind == "url":
        return connect_inventory.of_url(target, chosen, output)
    return connect_inventory.run(path, options, chosen, output)


def kind_of(
    target: str, options: PlaybookOptions, of_folder: FolderOptions, chosen: ConnectOptions
) -> Literal["url", "folder", "inventory"]:
    """Tell the three apart. Raises UserError for options that belong to another."""
    url = served.is_url(target)
    if not url and frame.kind_of(Path(target)) is not None:
        names = ["--tunnel"] if chosen.tunnel else []
        names += [f"--{name.replace('_', '-')}" for name in options.given()]
        _refuse(names, f"an inventory, and {target} is a folder that a render made")
        return "folder"
    _refuse(of_folder.given(), f"a folder that a render made, and {target} is none")
    if url:
        connect_inventory.check_url(options, chosen)
    return "url" if url else "inventory"


def _refuse(names: list[str], why: str) -> None:
    if names:
        raise UserError(f"{names[0]}: belongs to {why}", fix="leave it out")
