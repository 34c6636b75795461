"""`kimi-prov key`: print new API keys once; create, change, list and remove keys."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import Expiry, add_key_limits
from kimi_prov.commands.common.options import add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import say, show
from kimi_prov.show.text.tables import format_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.answers import KeyEntry

_HEAD = ("host", "key", "made (UTC)", "expires", "limits", "last used")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BACK = "`kimi-prov apply` creates the web UI's key again, and those that kimi_api_keys_file names"


@click.command(cls=Command)
@add_inventory_options(
    click.option("--rotate", is_flag=True, help="Create a new key; the engine is not restarted."),
    click.option(
        "--list", "listed", is_flag=True, help="Print the keys: made, expires, limits, used."
    ),
    click.option("--add", metavar="NAME", help="Create a key of this name, and print it once."),
    click.option("--set", "change", metavar="NAME", help="Change a key's end or limits."),
    click.option("--remove", metavar="NAME", help="Remove a key, and print the remaining ones."),
    click.option(
        "--expires",
        type=Expiry(),
        metavar="TIME",
        help="30d, 12h, 45m, a day as 2027-01-31, or never.",
    ),
    add_key_limits,
    report=None,
)
def key(  # noqa: PLR0913  (one for each option)
    path: Path,
    options: PlaybookOptions,
    *,
    rotate: bool,
    listed: bool,
    add: str | None,
    change: str | None,
    remove: str | None,
    expires: dict[str, int | None] | None,
    limits: dict[str, int | None],
) -> ExitCode:
    """Print `HOST KEY` for an API key that was not shown yet. It is shown only once.

    The generated password of a web UI's first administrator is also shown once. A limit of 0 means
    no limit. Limits and expiry hold from a key's next request on.
    """
    named = [name for name in (add, change, remove) if name is not None]
    if rotate + listed + len(named) > 1:
        raise click.UsageError("give one of --rotate, --list, --add, --set and --remove")
    request = {**(expires or {}), **({"limits": limits} if limits else {})}
    if request and add is None and change is None:
        raise click.UsageError("--expires and limits go with --add or --set")
    if change is not None and not request:
        raise click.UsageError("--set: give --expires or a limit")
    if add is not None:
        return _write_key(path, options, add, request, add=True)
    if change is not None:
        return _write_key(path, options, change, request, add=False)
    if listed or remove is not None:
        return _list_keys(path, options, remove=remove)
    return _show_new_keys(path, options, rotate=rotate)


def _list_keys(path: Path, options: PlaybookOptions, *, remove: str | None) -> ExitCode:
    """Print `HOST NAME made=... expires=... limits=... used=...` for each key, or a table.

    `remove`: the key that is removed before.
    """
    if remove is not None:
        _require_name(remove)
    variables = {"kimi_key_list": True, "kimi_key_remove": remove or ""}
    inventory, request = playbook_run.prepare("key", "key", path, options, variables)
    finished = playbook_run.run(request, inventory)
    rows = _report_heads([json.loads(line) for line in finished.key_lines])
    show(_format_keys([(row["host"], entry) for row in rows for entry in row["keys"]]))
    for row in rows:
        if row.get("removed"):
            gone = f"{row['host']}: {row['removed']} is refused from now on"
            say(clean_text.clean_row(f"{gone}; {_BACK}"))
    return playbook_run.conclude(finished)


def _write_key(
    path: Path, options: PlaybookOptions, name: str, rule: Mapping[str, Any], *, add: bool
) -> ExitCode:
    """Create a key and print `HOST KEY` for each host, or change the rule of a key.

    `rule`: {"limits": {name: number, or None for none}, "ends": unix time or None, or "ends_in_s"}.
    Exit 1 where an engine does not enforce a limit yet.
    """
    _require_name(name)
    variables = {("kimi_key_add" if add else "kimi_key_set"): name, "kimi_key_wish": dict(rule)}
    inventory, request = playbook_run.prepare("key", "key", path, options, variables)
    finished = playbook_run.run(request, inventory)
    rows = _report_heads([json.loads(line) for line in finished.key_lines])
    unlimited = False
    for row in rows:
        if row.get("key"):
            show(clean_text.clean_row(f"{row['host']} {row['key']}") + "\n")
        else:
            say(
                clean_text.clean_row(
                    f"{row['host']}: the new rule of {name} holds from its next request on"
                )
            )
        for index in row["uncounted"] if rule.get("limits") else ():
            unlimited = True
            late = f"{row['host']}: engine {index} was started without a counter: no limit holds"
            say(clean_text.clean_row(f"{late} there until `systemctl restart kimi-serve@{index}`"))
    if any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if unlimited else []))


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a key",
            fix="letters, digits, `.`, `_` and `-`; `kimi-prov key INVENTORY --list` prints them",
        )


def _format_keys(entries: Sequence[tuple[str, KeyEntry]]) -> str:
    """Write a line of each host's key: for a terminal as a table, else with names of values."""
    if not sys.stdout.isatty() or not all("limits" in entry for _, entry in entries):
        lines = [f"{host} {entry['name']}{_describe(entry)}" for host, entry in entries]
        return "".join(f"{clean_text.clean_row(line)}\n" for line in lines)
    cells = [[host, entry["name"], *_list_values(entry)] for host, entry in entries]
    clean = [[clean_text.clean_row(cell) for cell in row] for row in cells]
    width = shutil.get_terminal_size().columns
    return "\n".join(format_table(_HEAD, clean, width)) + "\n"


def _list_values(key: KeyEntry) -> list[str]:
    limits = ", ".join(f"{name} {limit}" for name, limit in (key["limits"] or {}).items())
    ends = _format_day(key["ends"], "never") + (", EXPIRED" if key["ended"] else "")
    return [_format_day(key["made"], "-"), ends, limits or "-", _format_day(key["last_used"], "-")]


def _format_day(at: float | None, none: str) -> str:
    return none if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _describe(key: KeyEntry) -> str:
    """Write the known values of a key; "" where the machine's version only sends names."""
    if "limits" not in key:
        return ""
    limits = ",".join(f"{name}:{number}" for name, number in (key["limits"] or {}).items())
    ends = _format_time(key["ends"], "never") + (" EXPIRED" if key["ended"] else "")
    made = _format_time(key["made"], "unknown")
    used = _format_time(key["last_used"], "never")
    return f" made={made} expires={ends} limits={limits or 'none'} used={used}"


def _format_time(at: float | None, none: str) -> str:
    if at is None:
        return none
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _report_heads(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Report hosts without keys because their group's head serves; return the others."""
    for row in rows:
        if row.get("elsewhere"):
            say(clean_text.clean_row(f"{row['host']}: {row['elsewhere']}"))
    return [row for row in rows if not row.get("elsewhere")]


def _show_new_keys(path: Path, options: PlaybookOptions, *, rotate: bool) -> ExitCode:
    """Print `HOST KEY` for each host whose key was not shown yet; `rotate` creates new keys.

    Then print `HOST E-MAIL PASSWORD` of a web UI's first administrator with a generated password.
    """
    inventory, request = playbook_run.prepare(
        "key", "key", path, options, {"kimi_key_rotate": rotate}
    )
    finished = playbook_run.run(request, inventory)
    lines = _report_heads([json.loads(line) for line in finished.key_lines])
    admins = [row for row in lines if "web_admin" in row]
    rows = [row for row in lines if "web_admin" not in row]
    for row in rows:
        if row.get("key"):
            # One line for each machine, because their keys differ.
            show(clean_text.clean_row(f"{row['host']} {row['key']}") + "\n")
        else:
            detail = row.get("detail") or "there is no key to show"
            say(clean_text.clean_row(f"{row['host']}: {detail}"))
    for row in admins:
        admin = row["web_admin"]
        show(clean_text.clean_row(f"{row['host']} {admin['email']} {admin['password']}") + "\n")
    if admins or any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    with_admin = {row["host"] for row in admins}
    missing = not all(row.get("key") or row["host"] in with_admin for row in rows)
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if missing else []))
