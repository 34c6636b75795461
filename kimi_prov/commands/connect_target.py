"""`kimi-prov connect`: a URL, a folder that a render made, or an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.commands import connect_folder, connect_inventory, served
from kimi_prov.errors import UserError
from kimi_prov.render import frame

if TYPE_CHECKING:
    from kimi_prov.commands.connect_folder import FolderOptions
    from kimi_prov.commands.connect_inventory import ConnectOptions
    from kimi_prov.commands.playbook_run import PlaybookOptions
    from kimi_prov.console.output import Output
    from kimi_prov.errors import ExitCode


def run(
    target: str,
    options: PlaybookOptions,
    of_folder: FolderOptions,
    chosen: ConnectOptions,
    output: Output,
) -> ExitCode:
    """Tell the three apart, and refuse options that belong to another."""
    url = served.is_url(target)
    path = Path(target)
    if not url and frame.kind_of(path) is not None:
        own = {"--ca": chosen.ca, "--tunnel": chosen.tunnel, "--for": chosen.snippet}
        names = [name for name, value in own.items() if value]
        names += [f"--{name.replace('_', '-')}" for name in options.given()]
        _refuse(names, f"an inventory, and {path} is a folder that a render made")
        return connect_folder.run(path, of_folder, output)
    _refuse(of_folder.given(), f"a folder that a render made, and {target} is none")
    if url:
        connect_inventory.check_url(options, chosen)
        return connect_inventory.of_url(target, chosen, output)
    return connect_inventory.run(path, options, chosen, output)


def _refuse(names: list[str], why: str) -> None:
    if names:
        raise UserError(f"{names[0]}: belongs to {why}", fix="leave it out")
