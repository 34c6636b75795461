"""Talks to the running proxy through its root-only socket: key map, draining, server states."""

from __future__ import annotations

import csv
import re
import socket
from typing import TYPE_CHECKING

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError, plain
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system.envelope import answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BACKEND, WAKE, ASLEEP = "engines", "wake", "asleep"
_PASSED = "L7OK"
STATES = {"drain": "drain", "undrain": "ready"}


def command(path: Path, text: str, timeout: float = 10) -> str:
    """Send one command (or several, split by `;`) and return HAProxy's answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout)
        channel.connect(str(path))
        channel.sendall(text.encode() + b"\n")
        parts = []
        while True:
            part = channel.recv(65536)
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode().strip()


def replace_map(path: Path, file: str, entries: dict[str, str]) -> None:
    """Swap the content of the loaded map `file` in one step: key (the hash) to value (the name).

    Requests see either the old map or the new one, never a half.
    """
    reply = command(path, f"prepare map {file}")
    version = reply.rpartition(":")[2].strip()
    if not version.isdigit():
        raise HostError(f"the proxy refused to prepare its key map: {reply}")
    for key, value in sorted(entries.items()):
        reply = command(path, f"add map @{version} {file} {key} {_word(value)}")
        if reply:
            raise HostError(f"the proxy refused a key: {reply}")
    reply = command(path, f"commit map @{version} {file}")
    if reply:
        raise HostError(f"the proxy refused the new key map: {reply}")


def _word(text: str) -> str:
    """Return a value as one word of HAProxy's command line."""
    return re.sub(r"([\\;\s])", r"\\\1", text)


def variable(path: Path, name: str) -> str:
    """Return the text of a variable of the process; empty where it is not set."""
    reply = command(path, f"get var {name}")
    return reply.partition("value=<")[2].rpartition(">")[0]


def servers(path: Path) -> list[dict[str, str | int]]:
    """Each engine behind the proxy: name, status (UP, DOWN, DRAIN), requests under way."""
    return [
        {
            "name": row["svname"],
            "status": row["status"].split()[0],
            "requests": int(row.get("scur") or 0),
        }
        for row in _servers(path)
    ]


def unchecked(path: Path) -> set[str]:
    """Return the servers whose last check did not pass, or that were not checked since a start.

    Until its first check a server is UP.
    """
    # A star: the next check is under way.
    return {row["svname"] for row in _servers(path) if row["check_status"].lstrip("* ") != _PASSED}


def _servers(path: Path) -> list[dict[str, str]]:
    """Return the rows of the backend's servers as HAProxy has them."""
    rows = csv.DictReader(command(path, f"show stat {BACKEND} 4 -1").lstrip("# ").splitlines())
    return [row for row in rows if row.get("pxname") == BACKEND]


def waiting(path: Path) -> int:
    """Count the requests that wait for a server of the backend."""
    return int(_backend(path, BACKEND).get("qcur") or 0)


def asleep(path: Path) -> int:
    """Count the machines behind a gateway that a request would wake."""
    return int(_backend(path, ASLEEP).get("act") or 0)


def _backend(path: Path, name: str) -> dict[str, str]:
    """Return the row of a backend; empty where there is no such backend."""
    lines = command(path, f"show stat {name} 2 -1").splitlines()
    rows = [dict(zip(lines[0].lstrip("# ").split(","), line.split(","))) for line in lines[1:]]
    return next((row for row in rows if row.get("pxname") == name), {})


def handed(path: Path) -> int:
    """Count the requests that are with kimi-wake: waiting for a start, or answered through it."""
    for line in command(path, f"show stat {WAKE} 2 -1").splitlines():
        row = line.split(",")
        # Where nothing wakes the machine there is no such backend.
        if row[:2] == [WAKE, "BACKEND"]:
            return int(row[4] or 0)
    return 0


def description(path: Path) -> str:
    """Return the description in the configuration that the running worker has loaded."""
    for line in command(path, "show info").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "description":
            return value.strip()
    return ""


def loaded_map(path: Path, file: str) -> dict[str, str]:
    """Return the keys and values of a map as the running worker has them."""
    rows = [line.split(None, 2) for line in command(path, f"show map {file}").splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3}


def index_of(server: Mapping[str, str | int]) -> int:
    """Return the number of the engine that a row of `servers` is of."""
    return int(str(server["name"])[len("engine") :])


def set_state(path: Path, index: int, state: str) -> None:
    """Put engine `index` into `drain` (no new requests, those under way go on) or `ready`."""
    reply = command(path, f"set server {BACKEND}/engine{index} state {state}")
    if reply:
        raise HostError(reply)


def main(argv: list[str]) -> int:
    """`proxy-state [drain|undrain [N]]`: take engines out of the balance or back, and show all.

    Without a number: all of them.
    """
    paths = Paths()
    state = STATES.get(argv[0]) if argv else None
    if argv and not (state and len(argv) <= 2 and all(word.isdigit() for word in argv[1:])):
        raise HostError("usage: proxy-state [drain|undrain [N]]")
    try:
        if state:
            rows = servers(paths.socket) if len(argv) == 1 else ()
            for index in [int(word) for word in argv[1:]] or map(index_of, rows):
                set_state(paths.socket, index, state)
        return answer({"ok": True, "servers": servers(paths.socket)})
    except OSError as error:
        raise HostError(
            f"the proxy does not answer on its socket: {plain(error)}",
            f"check whether it runs: systemctl status {unit_names.PROXY}",
        ) from None
