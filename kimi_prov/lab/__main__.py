"""`python -m kimi_prov.lab up|down|list|ssh INVENTORY`, until the command line has it."""

from __future__ import annotations

import sys
from pathlib import Path

from kimi_prov.errors import UserError
from kimi_prov.lab import commands

if __name__ == "__main__":
    verb, where, *rest = sys.argv[1:]
    try:
        if verb == "up":
            commands.up(Path(where))
        elif verb == "down":
            commands.down(Path(where))
        elif verb == "list":
            for line in commands.list_hosts(Path(where)):
                sys.stdout.write(f"{line}\n")
        elif verb == "link":
            commands.link(Path(where), rest[0], up=rest[1] == "up")
        elif verb == "power":
            commands.power(Path(where), rest[0], on=rest[1] == "on", hard="hard" in rest)
        elif verb == "reboot":
            commands.reboot(Path(where), rest[0])
        else:
            commands.ssh(Path(where), rest[0], rest[1:])
    except UserError as error:
        sys.exit(f"{error}")
