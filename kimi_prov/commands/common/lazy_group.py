"""A group whose commands are imported when they run: listing them imports none."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem


class Row(NamedTuple):
    """A command of a group: its name, its module, and its line in the list.

    `source`: a module below kimi_prov.commands and the command's name there, as `power:stop`; or
    a group. `hidden`: no list shows it.
    """

    name: str
    source: str | click.Group
    short_help: str
    hidden: bool = False


class _Commands(MutableMapping[str, click.Command]):
    """Commands by name; a command is imported when it is looked up."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._sources: dict[str, str | click.Command] = {row.name: row.source for row in rows}

    def __getitem__(self, name: str) -> click.Command:
        source = self._sources[name]
        if isinstance(source, str):
            module, _, attribute = source.partition(":")
            found = getattr(importlib.import_module(f"kimi_prov.commands.{module}"), attribute)
            assert isinstance(found, click.Command)  # noqa: S101  (the rows are ours)
            source = self._sources[name] = found
        return source

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._sources[name] = command

    def __delitem__(self, name: str) -> None:
        del self._sources[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class LazyGroup(click.Group):
    """Lists its commands in sections, each in the order of its rows."""

    def __init__(
        self, name: str, sections: Mapping[str, Sequence[Row]], **settings: object
    ) -> None:
        self._sections = sections
        rows = [row for section in sections.values() for row in section]
        self._short_help = {row.name: row.short_help for row in rows}
        super().__init__(name, _Commands(rows), **settings)  # type: ignore[arg-type]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        del ctx
        width = max(map(len, self._short_help))
        for title, rows in self._sections.items():
            with formatter.section(title):
                shown = [row for row in rows if not row.hidden]
                formatter.write_dl([(f"{row.name:<{width}}", row.short_help) for row in shown])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with the text, and the group's own options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  (only a shell asks)

        names = [
            CompletionItem(name, help=self._short_help[name])
            for name in sorted(self._short_help)
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)
