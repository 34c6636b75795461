"""The class of every command: its help in sections, and all that is missing told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECTION_TITLE = "Connection, as for ansible-playbook"


class ConnectionOption(click.Option):
    """An option by which Ansible reaches the machines: a help lists it after all others."""


class Command(click.Command):
    """A command whose help lists Ansible's options last, in a section of their own.

    `either`: parameters of which one has to be given.
    """

    either: tuple[str, ...] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those of the connection."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], _CONNECTION_TITLE: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                title = _CONNECTION_TITLE if isinstance(param, ConnectionOption) else "Options"
                sections[title].append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError that names all that is missing."""
        words = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.MissingParameter as error:
            missing = self._list_missing(ctx, words)
            if len(missing) < 2:
                raise
            raise MissingError(missing, ctx) from error
        # A shell that completes a line parses what is not yet whole.
        if self.either and not ctx.resilient_parsing:
            missing = self._list_missing(ctx, words)
            if missing:
                raise MissingError(missing, ctx)
        return rest

    def _list_missing(self, ctx: click.Context, args: Sequence[str]) -> list[tuple[str, ...]]:
        """List what is missing, each with the words of its alternatives."""
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        params = self.get_params(ctx)
        absent = {
            param.name: describe_parameter(param, ctx)
            for param in params
            if param.value_is_missing(param.consume_value(ctx, values)[0])
        }
        either = [tuple(absent.get(name, "") for name in self.either)] if self.either else []
        required = [(absent[one.name],) for one in params if one.required and one.name in absent]
        return [words for words in (*either, *required) if all(words)]


class MissingError(click.UsageError):
    """Required arguments or options are missing; `words` are those that the fix adds."""

    def __init__(self, missing: Sequence[tuple[str, ...]], ctx: click.Context) -> None:
        self.words = [alternatives[0] for alternatives in missing]
        names = [" or ".join(alternatives) for alternatives in missing]
        head = f"{', '.join(names[:-1])} and " if len(names) > 1 else ""
        super().__init__(f"{head}{names[-1]} {'are' if head else 'is'} missing", ctx)


def describe_parameter(param: click.Parameter, ctx: click.Context) -> str:
    """Return how a parameter is written: INVENTORY, or --output FILE."""
    if isinstance(param, click.Option):
        value = "" if param.is_flag else f" {param.make_metavar(ctx)}"
        return max(param.opts, key=len) + value
    return param.make_metavar(ctx).strip("[]")
