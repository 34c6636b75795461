"""`kimi-prov key`: print the API keys that nobody has seen yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kimi_prov.commands import playbook_run
from kimi_prov.console.output import say, show
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.playbook_run import PlaybookOptions


def run(path: Path, options: PlaybookOptions, *, rotate: bool) -> ExitCode:
    """Print `HOST KEY` for each host whose key nobody has seen yet; `rotate` makes new ones."""
    inventory, request = playbook_run.prepare(
        "key", "key", path, options, {"kimi_key_rotate": rotate}
    )
    finished = playbook_run.run(request, inventory)
    rows = [json.loads(line) for line in finished.key_lines]
    for row in rows:
        if row.get("key"):
            # One line for each machine: none of them speaks for another.
            show(clean_text.row(f"{row['host']} {row['key']}") + "\n")
        else:
            detail = row.get("detail") or "there is no key to show"
            say(clean_text.row(f"{row['host']}: {detail}"))
    if any(row.get("key") for row in rows):
        say("keep it now: it is not shown again")
    missing = not all(row.get("key") for row in rows)
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if missing else []))
