"""`kimi-prov key`: print API keys that nobody has seen yet, make, change, list and remove them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import playbook_run
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import say, show

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BACK = "`kimi-prov apply` makes the page another, and brings back what kimi_api_keys_file names"


def names(path: Path, options: PlaybookOptions, *, remove: str | None) -> ExitCode:
    """Print `HOST NAME made=... expires=... limits=... used=...` for each key that there is.

    `remove` takes one away before.
    """
    if remove is not None:
        _require_name(remove)
    wanted = {"kimi_key_list": True, "kimi_key_remove": remove or ""}
    inventory, request = playbook_run.prepare("key", "key", path, options, wanted)
    finished = playbook_run.run(request, inventory)
    rows = _served(list(map(json.loads, finished.key_lines)))
    for row in rows:
        for found in row["keys"]:
            show(clean_text.clean_row(f"{row['host']} {found['name']}{_told(found)}") + "\n")
        if row.get("removed"):
            gone = f"{row['host']}: {row['removed']} is refused from now on"
            say(clean_text.clean_row(f"{gone}; {_BACK}"))
    return playbook_run.conclude(finished)


def ruled(
    path: Path, options: PlaybookOptions, name: str, wish: Mapping[str, Any], *, add: bool
) -> ExitCode:
    """Make a key and print `HOST KEY` for each host, or change the rule of one that there is.

    `wish`: {"limits": {name: number, or None for none}, "ends": unix time or None, or "ends_in_s"}.
    Exit 1 where an engine does not hold it to a limit yet.
    """
    _require_name(name)
    wanted = {("kimi_key_add" if add else "kimi_key_set"): name, "kimi_key_wish": dict(wish)}
    inventory, request = playbook_run.prepare("key", "key", path, options, wanted)
    finished = playbook_run.run(request, inventory)
    rows = _served([json.loads(line) for line in finished.key_lines])
    loose = False
    for row in rows:
        if row.get("key"):
            show(clean_text.clean_row(f"{row['host']} {row['key']}") + "\n")
        else:
            say(
                clean_text.clean_row(
                    f"{row['host']}: {name} is held to it from its next request on"
                )
            )
        loose = bool(wish.get("limits") and row["uncounted"]) or loose
        for index in row["uncounted"] if wish.get("limits") else ():
            late = f"{row['host']}: engine {index} runs since before it could count: no limit holds"
            say(clean_text.clean_row(f"{late} there until `systemctl restart kimi-serve@{index}`"))
    if any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if loose else []))


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a key",
            fix="letters, digits, `.`, `_` and `-`; `kimi-prov key INVENTORY --list` prints them",
        )


def _told(key: Mapping[str, Any]) -> str:
    """Write what is known of a key; nothing where the machine's version tells names alone."""
    if "limits" not in key:
        return ""
    limits = ",".join(f"{name}:{number}" for name, number in key["limits"].items())
    ends = _time(key["ends"], "never") + (" EXPIRED" if key["ended"] else "")
    made = _time(key["made"], "unknown")
    used = _time(key["last_used"], "never")
    return f" made={made} expires={ends} limits={limits or 'none'} used={used}"


def _time(at: float | None, none: str) -> str:
    if at is None:
        return none
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _served(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say which hosts have no keys, since the head of their group serves; return the others."""
    for row in rows:
        if row.get("elsewhere"):
            say(clean_text.clean_row(f"{row['host']}: {row['elsewhere']}"))
    return [row for row in rows if not row.get("elsewhere")]


def run(path: Path, options: PlaybookOptions, *, rotate: bool) -> ExitCode:
    """Print `HOST KEY` for each host whose key nobody has seen yet; `rotate` makes new ones.

    After them `HOST E-MAIL PASSWORD` of a page's first administrator that was made.
    """
    inventory, request = playbook_run.prepare(
        "key", "key", path, options, {"kimi_key_rotate": rotate}
    )
    finished = playbook_run.run(request, inventory)
    told = _served([json.loads(line) for line in finished.key_lines])
    admins = [row for row in told if "web_admin" in row]
    rows = [row for row in told if "web_admin" not in row]
    for row in rows:
        if row.get("key"):
            # One line for each machine: none of them speaks for another.
            show(clean_text.clean_row(f"{row['host']} {row['key']}") + "\n")
        else:
            detail = row.get("detail") or "there is no key to show"
            say(clean_text.clean_row(f"{row['host']}: {detail}"))
    for row in admins:
        admin = row["web_admin"]
        show(clean_text.clean_row(f"{row['host']} {admin['email']} {admin['password']}") + "\n")
    if admins or any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    told_of = {row["host"] for row in admins}
    missing = not all(row.get("key") or row["host"] in told_of for row in rows)
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if missing else []))
