"""`usage-count`: the one process that counts, kimi-usage.service.

Engines ask it over a socket of the machine whether a key may begin a request, and tell it what the
request uses: one JSON object a line, and one back for each. It runs as the proxy's user, who says
anyway who comes in: an engine's user can neither write the database nor end the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pkgutil
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from kimi_prov.contract import key_rules, paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.group.notify import Notifier
from kimi_prov.on_host.system.files import remove
from kimi_prov.on_host.usage import exposition
from kimi_prov.on_host.usage.store import Store

# What a power cut may take.
SETTLE_S = 10.0
_LINE_BYTES = 4096
_NAME_LENGTH = 64
# Engines that ask at the same moment, while it is busy.
_WAITING = 1024
_OURS = ("usage/counter.py", "usage/store.py", "usage/exposition.py")


def code() -> str:
    """Tell this code from that of another version."""
    whole = hashlib.sha256()
    for name in _OURS:
        whole.update(pkgutil.get_data("kimi_prov.on_host", name) or b"")
    whole.update(pkgutil.get_data("kimi_prov.contract", "key_rules.py") or b"")
    return whole.hexdigest()[:16]


class Counter:
    """Answers engines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._code = code()
        self.dirty = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends; what makes no sense ends it."""
        try:
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                writer.write(json.dumps(self.answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except (ValueError, KeyError, TypeError, OSError) as error:
            print(f"a connection said what is no question: {type(error).__name__}", file=sys.stderr)
        except sqlite3.Error as error:
            print(f"not counted: {error}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    def answer(self, said: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the answer to one question. Raises ValueError, KeyError or TypeError for none."""
        if said.get("do") == "hello":
            return {"ok": True, "code": self._code}
        request, key = _word(said["id"]), _word(said["key"])
        self.dirty = True
        if said["do"] == "ask":
            rule = key_rules.parse(str(said.get("rule") or ""))
            refusal = self._store.ask(request, key, rule.limits)
            if refusal:
                return {"ok": False, "reason": refusal.reason, "wait_s": refusal.wait_s}
        elif said["do"] == "tell":
            used = (_count(said["prompt"]), _count(said["completion"]))
            self._store.tell(request, key, *used, ended=said["ended"] is True)
        else:
            raise ValueError("unknown")
        return {"ok": True}

    def settle(self) -> None:
        """Bring what was counted to the disk, and to who collects it."""
        if not self.dirty:
            return
        self.dirty = False
        try:
            self._store.settle()
            exposition.write(Path(paths.USAGE_PROM), self._store.rows(until=""))
        except (sqlite3.Error, OSError) as error:
            self.dirty = True
            print(f"not on the disk yet: {error}", file=sys.stderr, flush=True)


def _word(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_LENGTH or not value.isprintable():
        raise ValueError("no name")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= key_rules.MOST:
        raise ValueError("no number of tokens")
    return value


def opened(database: Path, keep_days: int) -> Store:
    """Open the database. One that is broken is put beside it: a service that is up comes first."""
    try:
        return Store(database, keep_days=keep_days)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        beside = f"{database}.broken-{int(time.time())}"
        print(f"{database} cannot be read ({error}): kept as {beside}", file=sys.stderr, flush=True)
        os.replace(str(database), beside)
        for end in ("-wal", "-shm"):
            remove(f"{database}{end}")
        return Store(database, keep_days=keep_days)


async def _run(store: Store, address: str, notifier: Notifier) -> None:
    counter = Counter(store)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    remove(address)
    server = await asyncio.start_unix_server(
        counter.serve, address, limit=_LINE_BYTES, backlog=1024
    )
    # The unit's group is the engines'.
    os.chmod(address, 0o660)
    counter.settle()
    notifier.ready()
    async with server:
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), SETTLE_S)
            except TimeoutError:
                counter.settle()
    counter.settle()


def main(argv: List[str]) -> int:
    """`usage-count KEEP_DAYS`: count until it is ended."""
    if len(argv) != 1 or not argv[0].isdigit():
        raise HostError("usage: usage-count KEEP_DAYS")
    notifier = Notifier.of_unit(os.environ)
    store = opened(Path(paths.USAGE_DB), int(argv[0]))
    try:
        asyncio.run(_run(store, paths.USAGE_SOCKET, notifier))
    finally:
        store.close()
    return 0


def running(address: Path, timeout: float = 5.0) -> Optional[str]:
    """Return the code of the counter that runs; None where none answers."""
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(timeout)
            channel.connect(str(address))
            channel.sendall(b'{"do":"hello"}\n')
            answer = json.loads(channel.makefile().readline())
    except (OSError, ValueError):
        return None
    return str(answer.get("code"))
