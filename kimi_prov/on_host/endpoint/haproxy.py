"""Client of the running proxy's socket, for root: key map, draining, server states."""

from __future__ import annotations

import contextlib
import csv
import re
import socket
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Callable, TypeVar

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system.envelope import answer

if TYPE_CHECKING:
    from kimi_prov.contract.documents.status.machine import EngineBehind

Tell = Callable[[str], str]
T = TypeVar("T")

BACKEND, WAKE, ASLEEP = "engines", "wake", "asleep"
# The table that counts the questions under way; its rows: of clients, and of verify.
_UNDER_WAY = "under_way"
OF_CLIENTS, OF_VERIFY = 1, 2
_PASSED = "L7OK"
# Seconds for which the master may restart in a reload, while its socket does not answer.
_START_TIMEOUT_S = 10.0
# Answers of an earlier worker: it has ended, or had no such map.
_NOTHING_THERE = ("Can't find the target PID", "Unknown map identifier")
# The columns that are read of `show stat`.
_OF_BACKEND, _OF_SERVERS = 2, 4
STATES = {"drain": "drain", "undrain": "ready"}


class _NothingThereError(Exception):
    """An earlier worker has nothing that a command could change."""


def send_command(path: Path, text: str, timeout: float = 10) -> str:
    """Send one command (or several, split by `;`) and return HAProxy's answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout)
        channel.connect(str(path))
        channel.sendall(text.encode() + b"\n")
        # Without it the master would wait for more.
        channel.shutdown(socket.SHUT_WR)
        parts = []
        while True:
            part = channel.recv(65536)
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode().strip()


def replace_map(path: Path, file: str, entries: dict[str, str]) -> None:
    """Replace the content of the loaded map `file` in one step: key (the hash) -> value (the name).

    Requests see either the old map or the new one, never a mixture. The maps of earlier workers are
    replaced too: after a reload, a client of HTTP/2 may keep a connection to one of them.
    """
    _ask_each(path, lambda tell: _replace_map(tell, file, entries))


def _replace_map(tell: Tell, file: str, entries: dict[str, str]) -> None:
    reply = tell(f"prepare map {file}")
    version = reply.rpartition(":")[2].strip()
    if not version.isdigit():
        raise HostError(f"the proxy refused to prepare its key map: {reply}")
    for key, value in sorted(entries.items()):
        reply = tell(f"add map @{version} {file} {key} {_quote_word(value)}")
        if reply:
            raise HostError(f"the proxy refused a key: {reply}")
    reply = tell(f"commit map @{version} {file}")
    if reply:
        raise HostError(f"the proxy refused the new key map: {reply}")


def _quote_word(text: str) -> str:
    """Return a value as one word of HAProxy's command line."""
    return re.sub(r"([\\;\s])", r"\\\1", text)


def read_variable(path: Path, name: str) -> str:
    """Return the text of a variable of the process; empty where it is not set."""
    reply = send_command(path, f"get var {name}")
    return reply.partition("value=<")[2].rpartition(">")[0]


def list_servers(path: Path) -> list[EngineBehind]:
    """Return each engine behind the proxy: name, status (UP, DOWN, DRAIN), requests under way."""
    held = count_requests(path)
    return [
        {"name": row["svname"], "status": row["status"].split()[0], "requests": held[row["svname"]]}
        for row in _read_rows(path, BACKEND, _OF_SERVERS)
    ]


def count_requests(path: Path) -> Counter[str]:
    """Count the requests that each engine is answering, by its name.

    Includes requests from before a reload, also of engines that are no longer behind the proxy.
    """
    found: Counter[str] = Counter()
    for row in _read_all_rows(path, BACKEND, _OF_SERVERS):
        found[row["svname"]] += int(row["scur"] or 0)
    return found


def list_passed(path: Path) -> set[str]:
    """Return the servers that get requests and whose last check has passed.

    HAProxy calls a server UP from its start on, also before the first check.
    """
    return {
        row["svname"]
        for row in _read_rows(path, BACKEND, _OF_SERVERS)
        # The star means that the next check is under way.
        if row["status"].startswith("UP") and row["check_status"].lstrip("* ") == _PASSED
    }


def count_waiting(path: Path) -> int:
    """Count the requests that wait for a server of the backend."""
    return sum(int(row["qcur"] or 0) for row in _read_rows(path, BACKEND, _OF_BACKEND))


def count_asleep(path: Path) -> int:
    """Count the machines behind a gateway that a request would wake."""
    return sum(int(row["act"] or 0) for row in _read_rows(path, ASLEEP, _OF_BACKEND))


def count_handed(path: Path) -> int:
    """Count the requests at kimi-wake: waiting for a start, or answered through it.

    Where nothing wakes the machine there is no such backend.
    """
    return sum(int(row["scur"] or 0) for row in _read_all_rows(path, WAKE, _OF_BACKEND))


def count_questions(path: Path, whose: int = OF_CLIENTS) -> int:
    """Count the questions under way that their keys may ask, of earlier workers as well.

    Only where the machine rests by itself there is such a table.
    """
    row = re.compile(rf"\bkey={whose} .*\bconn_cur=(\d+)")
    workers = _ask_each(path, lambda tell: row.findall(tell(f"show table {_UNDER_WAY}")))
    return sum(int(count) for counts in workers for count in counts)


def _read_rows(path: Path, backend: str, kind: int) -> list[dict[str, str]]:
    return _parse_rows(send_command(path, f"show stat {backend} {kind} -1"), backend)


def _parse_rows(text: str, backend: str) -> list[dict[str, str]]:
    found = csv.DictReader(text.lstrip("# ").splitlines())
    return [row for row in found if row.get("pxname") == backend]


def _read_all_rows(path: Path, backend: str, kind: int) -> list[dict[str, str]]:
    """Return the rows of `_read_rows`, and those of earlier workers that end their requests."""
    text = f"show stat {backend} {kind} -1"
    found = _ask_each(path, lambda tell: _parse_rows(tell(text), backend))
    return [row for rows in found for row in rows]


def _ask_each(path: Path, ask: Callable[[Tell], T]) -> list[T]:
    """Ask the present worker, and then the earlier workers that a reload left."""
    # A proxy that does not run is not waited for.
    found = [ask(partial(send_command, path))]
    master = path.with_name(Path(layout.PROXY_MASTER).name)
    old = _ask_master(master, "show proc").partition("# old workers")[2].partition("#")[0]
    for worker in re.findall(r"^(\d+)\s", old, re.MULTILINE):
        with contextlib.suppress(_NothingThereError):
            found.append(ask(partial(_ask_old_worker, master, worker)))
    return found


def _ask_old_worker(master: Path, worker: str, text: str) -> str:
    reply = _ask_master(master, f"@!{worker} {text}")
    if reply.startswith(_NOTHING_THERE):
        raise _NothingThereError
    return reply


def _ask_master(master: Path, text: str) -> str:
    """Return the master's answer. Raises OSError where it does not answer."""
    until = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            return send_command(master, text)
        except FileNotFoundError:
            # The unit may be older than the master's socket, until it is restarted.
            return ""
        except ConnectionError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def read_description(path: Path) -> str:
    """Return the description in the configuration that the running worker has loaded."""
    for line in send_command(path, "show info").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "description":
            return value.strip()
    return ""


def read_map(path: Path, file: str) -> dict[str, str]:
    """Return the keys and values of a map that the running worker has."""
    rows = [line.split(None, 2) for line in send_command(path, f"show map {file}").splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3}


def parse_index(server: str) -> int:
    """Return the number of the engine that has this name at the proxy."""
    return int(server[len("engine") :])


def set_state(path: Path, index: int, state: str) -> None:
    """Put engine `index` into `drain` (no new requests, those under way go on) or `ready`."""
    # An earlier worker refuses this command with "Proxy is disabled".
    reply = send_command(path, f"set server {BACKEND}/engine{index} state {state}")
    if reply:
        raise HostError(reply)


def move_server(path: Path, server: str, address: str, port: int) -> None:
    """Change the address of a machine in the running worker; a reload forgets it."""
    for backend in (BACKEND, ASLEEP):
        reply = send_command(path, f"set server {backend}/{server} addr {address} port {port}")
        # It says what was changed, or that nothing was; any other answer is a refusal.
        if "changed" not in reply and "no need to change" not in reply:
            raise HostError(f"the proxy refused {address}:{port} for {server}: {reply}")


def main(argv: list[str]) -> int:
    """`proxy-state [drain|undrain [N]]`: take engines out of the balance or back, and show all.

    Without a number: all engines.
    """
    paths = Paths()
    state = STATES.get(argv[0]) if argv else None
    if argv and not (state and len(argv) <= 2 and all(word.isdigit() for word in argv[1:])):
        raise HostError("usage: proxy-state [drain|undrain [N]]")
    try:
        if state:
            rows = list_servers(paths.socket) if len(argv) == 1 else ()
            named = [parse_index(str(row["name"])) for row in rows]
            for index in [int(word) for word in argv[1:]] or named:
                set_state(paths.socket, index, state)
        return answer({"ok": True, "servers": list_servers(paths.socket)})
    except OSError as error:
        raise HostError(
            f"the proxy does not answer on its socket: {describe_error(error)}",
            f"check whether it runs: systemctl status {unit_names.PROXY}",
        ) from None
