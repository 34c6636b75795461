"""`kimi-prov logs`: the merged journals of our units on all hosts."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import add_inventory_options
from kimi_prov.contract import clean_text, unit_names
from kimi_prov.errors import UserError
from kimi_prov.show.output import write_whole
from kimi_prov.show.text import logs as logs_text
from kimi_prov.show.text.logs import LogScreen, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output

_DEFAULT_LINES = 100
# A time before now.
_MAX_LINES = 20_000
# Seconds for which a line waits for earlier lines of other hosts. Without --follow a host sends all
# its lines together, so a slow host is waited for that long.
_HOLD_S, _FIRST_S = 0.7, 3.0
_ONCE_S = 20.0
_AGO = re.compile(r"(\d{1,6})\s*(s|min|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_YEAR = re.compile(r"\d{4}-")


@click.command(cls=Command)
@add_inventory_options(
    click.option("--all", "everything", is_flag=True, help="Checks that were answered, too."),
    click.option("--follow", is_flag=True, help="Go on with new lines, until Ctrl-C."),
    click.option(
        "--unit",
        "units",
        multiple=True,
        metavar="NAME",
        help="Only this unit: serve, serve@0, proxy, fetch, ...  May be repeated.",
    ),
    click.option(
        "--since", metavar="TIME", help="No older lines: 10min, 2h, 3d, 14:05, '2026-11-24 14:05'."
    ),
    click.option(
        "--lines",
        type=click.IntRange(1, _MAX_LINES),
        metavar="N",
        help="The last N of each host.  [default: 100; all, with --since]",
    ),
)
def logs(  # noqa: PLR0913  (one for each option)
    path: Path,
    options: PlaybookOptions,
    output: Output,
    *,
    everything: bool,
    follow: bool,
    units: tuple[str, ...],
    since: str | None,
    lines: int | None,
) -> ExitCode:
    """Show the logs of the units of all hosts, sorted by time; secrets are masked.

    The checks of health and metrics that were answered are left out, unless `--all` is given.

    With `--format json` each line is a document of its own.
    """
    output.check()
    if follow and output.file is not None:
        raise UserError(
            "--output is written at the end, and --follow never ends",
            fix=f"send standard output there:  > {clean_text.quote_word(output.file)}",
        )
    variables = {
        "logs_units": find_units(units),
        "logs_since": 0 if since is None else parse_since(since, time.time()),
        "logs_lines": lines or (_DEFAULT_LINES if since is None else _MAX_LINES),
        "logs_routine": everything,
        "logs_follow": follow,
    }
    inventory, request = playbook_run.prepare("logs", "logs", path, options, variables)
    if follow:
        request = playbook_run.keep_workers(request, inventory)
    kept: list[str] = []
    to_file = output.file is not None
    screen = LogScreen(
        output.format,
        Timeline(_HOLD_S, _FIRST_S) if follow else Timeline(_HOLD_S, _ONCE_S),
        kept.append if to_file else logs_text.write_lines,
        terminal=not to_file and sys.stdout.isatty(),
        colour=logs_text.has_colours(),
    )
    finished = playbook_run.run(request, inventory, screen=screen)
    if output.file is not None:
        write_whole(output.file, "".join(kept))
    return playbook_run.conclude(finished)


def find_units(units: Sequence[str]) -> list[str]:
    """Return the named units or patterns; all of our units where none is named."""
    found = [unit_names.find_unit(text) for text in units]
    for text, name in zip(units, found, strict=True):
        if name is None:
            known = ", ".join(dict.fromkeys(map(unit_names.shorten, unit_names.OURS)))
            raise UserError(
                f"--unit {text}: kimi-prov has no unit of that name",
                fix=f"name one of: serve, serve@0, {known.replace('serve@, ', '')}",
            )
    return list(dict.fromkeys(name for name in found if name)) or list(unit_names.list_journals())


def parse_since(text: str, now: float) -> int:
    """Return the time that --since names, in whole seconds since 1970.

    `10min`, `2h` and `3d` are before now; a date, or a time of today or of a date, is local
    time. Raises UserError for anything else.
    """
    ago = _AGO.fullmatch(text.strip().removesuffix(" ago"))
    if ago:
        return max(1, int(now) - int(ago[1]) * _SECONDS[ago[2]])
    today = datetime.fromtimestamp(now).astimezone().date().isoformat()
    stamp = text.strip() if _YEAR.match(text.strip()) else f"{today}T{text.strip()}"
    try:
        return max(1, int(datetime.fromisoformat(stamp).timestamp()))
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"--since {text}: this is no time",
            fix="say how long ago, 30s, 10min, 2h or 3d, or when: 14:05, 2026-11-24, "
            "'2026-11-24 14:05'",
        ) from None
