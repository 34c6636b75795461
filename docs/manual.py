"""Writes the manual page of the command line, docs/man/kimi-prov.1: `make docs`.

Decides: the generated pages of the docs (the manual page).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the program reads beside its options; each is told in the guides too.
_ENVIRONMENT = {
    "KIMI_PROV_CATALOG": "A folder with rows of your own over the catalogue's, as --catalog.",
    "HF_ENDPOINT": "The hub that `catalog pin` asks.",
    "NO_COLOR": "Where it is set, nothing is coloured.",
    "XDG_STATE_HOME": "Where the folders of runs are kept.",
    "_KIMI_PROV_COMPLETE": "Set to bash_source, zsh_source or fish_source, it prints the shell's "
    "completion.",
}
_FILES = {"~/.local/state/kimi-prov/runs": "Log, times and result of each run."}


def page(cli: click.Group, name: str) -> str:
    """Return the manual page of a group of commands, in troff's macros `man`."""
    context = click.Context(cli, info_name=name)
    lines = [
        '.\\" Made from the definitions by `make docs`; do not edit.',
        f".TH {name.upper()} 1",
        ".SH NAME",
        f"{name} \\- {_plain(_sentence(cli.help or ''))}",
        ".SH SYNOPSIS",
        f".B {name}",
        _plain(" ".join(cli.collect_usage_pieces(context))),
        ".SH COMMANDS",
    ]
    for title, command in commands(cli, name):
        lines += _command(title, command)
    epilog = (cli.epilog or "").removeprefix("Exit codes: ").rstrip(".")
    lines += [".SH EXIT STATUS"]
    for row in epilog.split("; "):
        code, _, meaning = row.partition(" ")
        lines += _entry(f".B {code}", meaning)
    for heading, rows in (("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        lines += [f".SH {heading}"]
        for what, meaning in rows.items():
            lines += _entry(f".B {_plain(what)}", meaning)
    lines += [".SH SEE ALSO", ".BR ansible\\-playbook (1),", ".BR systemctl (1),"]
    lines += [".BR haproxy (1)"]
    return "\n".join(lines) + "\n"


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    """Give every command with its whole name, those of groups in their place."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _command(title: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=title)
    yield f".SS {_plain(title.partition(' ')[2])}"
    yield f".B {_plain(title)}"
    yield _plain(" ".join(command.collect_usage_pieces(context)))
    for paragraph in (command.help or "").replace("\b", "").split("\n\n"):
        yield from (".PP", _plain(paragraph))
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record:
            yield from _entry(f".B {_plain(record[0])}", record[1])


def _entry(head: str, text: str) -> Iterator[str]:
    yield from (".TP", head, _plain(text))


def _sentence(text: str) -> str:
    return text.split("\n\n", maxsplit=1)[0]


def _plain(text: str) -> str:
    """Write text on one line so that troff takes none of it for a request."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
