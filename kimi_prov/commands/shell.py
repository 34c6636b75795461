"""`kimi-prov completion`, `help` and `version`: what other tools have under these names."""

from __future__ import annotations

from typing import cast

import click
from click.shell_completion import get_completion_class

from kimi_prov.commands.common.command import Command
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import show

_PROGRAM, _VARIABLE = "kimi-prov", "_KIMI_PROV_COMPLETE"


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what completes commands, options and values in a shell.

    bash and zsh: eval "$(kimi-prov completion bash)" in ~/.bashrc, or `zsh` in ~/.zshrc. fish:
    kimi-prov completion fish > ~/.config/fish/completions/kimi-prov.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise UserError(f"no completion is made for {shell}", fix="kimi-prov completion --help")
    root = context.find_root().command
    show(made(root, {}, _PROGRAM, _VARIABLE).source() + "\n")


@click.command("help", cls=Command)
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...]) -> ExitCode:
    """Show the help of a command, as `kimi-prov COMMAND --help` does."""
    root = context.find_root().command
    return cast("ExitCode", root.main([*words, "--help"], _PROGRAM, standalone_mode=False))


@click.command(cls=Command)
def version() -> None:
    """Show the version, as `kimi-prov --version` does."""
    from kimi_prov import __version__  # noqa: PLC0415  (at its run)

    show(f"{_PROGRAM}, version {__version__}\n")
