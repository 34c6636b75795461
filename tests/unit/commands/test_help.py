"""The help of every command at 80 columns: whole lines, none wider and none cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from kimi_prov.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from command_line import CommandLine


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


@pytest.mark.parametrize("words", list(commands(cli)), ids=lambda words: " ".join(words) or "all")
def test_no_line_of_a_help_is_cut_or_wider_than_a_terminal(
    kimi: CommandLine, words: tuple[str, ...]
) -> None:
    done = kimi.run(*words, "--help")
    assert done.returncode == 0, done.stderr
    usage, _, rest = done.stdout.partition("\n\n")
    assert usage.startswith(" ".join(["Usage: kimi-prov", *words]))
    # Words that were left out are told by three dots at the end of a line.
    lines = rest.splitlines()
    assert len(lines) > 3
    assert [line for line in lines if line.rstrip().endswith(("...", "\u2026"))] == []
    # A path has no place to break it.
    paths = [line for line in lines if line.startswith("  Docs: ")]
    assert [line for line in lines if len(line) > 80 and line not in paths] == []
