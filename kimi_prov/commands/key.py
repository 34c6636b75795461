"""`kimi-prov key`: print the API keys that nobody has seen yet, list all, or take one away."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.commands import playbook_run
from kimi_prov.console.output import say, show
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.playbook_run import PlaybookOptions

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BACK = "`kimi-prov apply` makes the page another, and brings back what kimi_api_keys_file names"


def names(path: Path, options: PlaybookOptions, *, remove: str | None) -> ExitCode:
    """Print `HOST NAME` for each key that there is; `remove` takes one away before."""
    if remove is not None and not _NAME.fullmatch(remove):
        raise UserError(
            f"{remove!r} is no name of a key",
            fix="`kimi-prov key INVENTORY --list` prints the names",
        )
    wanted = {"kimi_key_list": True, "kimi_key_remove": remove or ""}
    inventory, request = playbook_run.prepare("key", "key", path, options, wanted)
    finished = playbook_run.run(request, inventory)
    rows = _served(list(map(json.loads, finished.key_lines)))
    for row in rows:
        for name in row["names"]:
            show(clean_text.row(f"{row['host']} {name}") + "\n")
        if row.get("removed"):
            gone = f"{row['host']}: {row['removed']} is refused from now on"
            say(clean_text.row(f"{gone}; {_BACK}"))
    return playbook_run.conclude(finished)


def _served(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say which hosts have no keys, since the head of their group serves; return the others."""
    for row in rows:
        if row.get("elsewhere"):
            say(clean_text.row(f"{row['host']}: {row['elsewhere']}"))
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
            show(clean_text.row(f"{row['host']} {row['key']}") + "\n")
        else:
            detail = row.get("detail") or "there is no key to show"
            say(clean_text.row(f"{row['host']}: {detail}"))
    for row in admins:
        admin = row["web_admin"]
        show(clean_text.row(f"{row['host']} {admin['email']} {admin['password']}") + "\n")
    if admins or any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    told_of = {row["host"] for row in admins}
    missing = not all(row.get("key") or row["host"] in told_of for row in rows)
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if missing else []))
