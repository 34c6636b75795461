"""`usage-count`: the one process that counts, kimi-usage.service.

Over a Unix socket, engines ask it whether a key may begin a request, and report what the request
uses: one JSON object a line, and one back for each. It runs as the proxy's user, which
authenticates the clients anyway: an engine's user can neither write the database nor end the
process.

The proxy asks it whether a key may go on, before a request reaches an engine or wakes the machine.
A gateway before the machine asks it, through the machine's proxy, what keys used a moment ago; the
same program on a gateway adds that up.

Decides: what counts as usage (what is kept).
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
from typing import TYPE_CHECKING, Any, Callable, Optional

from kimi_prov.contract import gateways, key_rules
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import gauges
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.exposition import render
from kimi_prov.on_host.system.files import remove
from kimi_prov.on_host.system.notify import Notifier
from kimi_prov.on_host.usage import exposition, windows
from kimi_prov.on_host.usage.machines import Machines
from kimi_prov.on_host.usage.places import Holder, Places
from kimi_prov.on_host.usage.pool import Pool
from kimi_prov.on_host.usage.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.on_host.usage.windows import Refusal

    Answered = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
    Judge = Callable[[str, Mapping[str, int], int], Optional[Refusal]]

# Seconds of counts that a power cut may lose.
SETTLE_S = 10.0
_LINE_BYTES = 4096
_NAME_LENGTH = 64
# Connections of engines that may wait while the process is busy.
_MAX_BACKLOG = 1024
_OURS = (
    *(f"usage/{name}.py" for name in ("counter", "store", "clock", "windows", "places", "pool")),
    "usage/machines.py",
    *("usage/exposition.py", "endpoint/gauges.py", "system/exposition.py"),
)
_GATEWAY = "--gateway"
# The variable in which systemd names the start of the machine: the unit's own /proc does not.
_BOOT = "KIMI_BOOT_ID"


# What a line that is no question raises.
_FALSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def hash_code() -> str:
    """Return the digest that distinguishes this code from another version's."""
    whole = hashlib.sha256()
    for name in _OURS:
        whole.update(pkgutil.get_data("kimi_prov.on_host", name) or b"")
    whole.update(pkgutil.get_data("kimi_prov.contract", "key_rules.py") or b"")
    return whole.hexdigest()[:16]


class Counter:
    """Answers engines; `shown`: the file for the metrics collector."""

    def __init__(self, store: Store, shown: Path) -> None:
        self._store, self._shown = store, shown
        # On a gateway: its own metrics besides.
        self.more: Callable[[], str] = str
        self._code = hash_code()
        self._places = Places()
        self.dirty = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends; a line that makes no sense ends it."""
        holder = Holder()
        try:
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                writer.write(json.dumps(self.answer(json.loads(line), holder)).encode() + b"\n")
                await writer.drain()
        except (*_FALSE, OSError) as error:
            print(f"a connection said what is no question: {type(error).__name__}", file=sys.stderr)
        except sqlite3.Error as error:
            print(f"not counted: {error}", file=sys.stderr, flush=True)
        finally:
            self._places.leave(holder)
            writer.close()

    def check(self, key: str, limits: Mapping[str, int], at_proxy: int) -> Refusal | None:
        """Return the limit that refuses a request of a key now; count nothing."""
        # The engines know better than the proxy what is under way.
        del at_proxy
        return self._store.check(key, limits, self._places.count(key))

    def answer(self, said: Mapping[str, Any], holder: Holder) -> dict[str, Any]:
        """Answer one question. Raises ValueError, KeyError or TypeError for a bad one."""
        if said.get("do") == "hello":
            return {"ok": True, "code": self._code}
        request, key = _require_word(said["id"]), self._store.require_name(said["key"])
        self.dirty = True
        if said["do"] == "ask":
            rule = key_rules.parse(str(said.get("rule") or ""))
            others = self._places.count(key, besides=request)
            refusal = self._store.ask(request, key, rule.limits, others)
            if refusal:
                return {"ok": False, "reason": refusal.reason, "wait_s": refusal.wait_s}
            self._places.add(key, request, holder)
        elif said["do"] == "widen":
            rule = key_rules.parse(str(said.get("rule") or ""))
            answers = max(_require_count(said["answers"]), 1)
            others = self._places.count(key, besides=request)
            for refusal in windows.check_parallel(others + answers - 1, rule.limits):
                self._store.refuse(key, refusal.reason)
                return {"ok": False, "reason": refusal.reason, "wait_s": refusal.wait_s}
            self._places.add(key, request, holder, answers)
        elif said["do"] == "tell":
            used = (_require_count(said["prompt"]), _require_count(said["completion"]))
            ended = said["ended"] is True
            self._store.tell(request, key, *used, ended=ended)
            if ended:
                self._places.free(key, request)
            else:
                # After a restart of this program it has no place yet.
                self._places.add(key, request, holder)
        else:
            raise ValueError("unknown")
        return {"ok": True}

    async def tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a gateway, which the proxy has accepted, with what keys used."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps(self._store.recent(), separators=(",", ":")).encode()
            head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            # The client has gone, or is no proxy.
            pass
        except sqlite3.Error as error:
            print(f"the use of keys cannot be reported: {error}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    def settle(self) -> None:
        """Write the counts to the disk, and to the file of the metrics collector."""
        if not self.dirty:
            return
        self.dirty = False
        try:
            self._store.settle()
            exposition.write(self._shown, self._store.rows(until=""), self.more())
        except (sqlite3.Error, OSError) as error:
            self.dirty = True
            print(f"not on the disk yet: {error}", file=sys.stderr, flush=True)


def _require_word(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_LENGTH or not value.isprintable():
        raise ValueError("no name")
    return value


def _require_count(value: object) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 <= value <= key_rules.MAX_LIMIT
    ):
        raise ValueError("no number of tokens")
    return value


def open_store(database: Path, keep_days: int, boot: str = "") -> Store:
    """Open the database. A broken one is renamed: the service has to be up first of all."""
    try:
        return Store(database, keep_days=keep_days, boot=boot)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        beside = f"{database}.broken-{int(time.time())}"
        print(f"{database} cannot be read ({error}): kept as {beside}", file=sys.stderr, flush=True)
        os.replace(str(database), beside)
        for end in ("-wal", "-shm"):
            remove(f"{database}{end}")
        return Store(database, keep_days=keep_days, boot=boot)


class Limits:
    """Answers the proxy: the line `KEY RULE AT_ONCE` gets `go`, or `no SECONDS TYPE WHY`.

    AT_ONCE: how many requests of the key are at this proxy, this one included. `judge` returns the
    limit that refuses a key. A gateway's counts the request as begun; on a machine the engine asks
    again as it begins.
    """

    def __init__(self, store: Store, counter: Counter, judge: Judge) -> None:
        self._store, self._counter, self._judge = store, counter, judge

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question."""
        try:
            line = await reader.readline()
            writer.write(self.answer(*line.decode("latin-1").split()).encode() + b"\n")
            await writer.drain()
        except (ValueError, TypeError, OSError) as error:
            print(f"a connection said what is no question: {type(error).__name__}", file=sys.stderr)
        except sqlite3.Error as error:
            print(f"a refusal is not counted: {error}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    def answer(self, key: str, rule: str, at_once: str = "1") -> str:
        """Return the answer to one question. Raises ValueError or TypeError for a bad one."""
        limits = key_rules.parse(rule).limits
        refusal = self._judge(self._store.require_name(key), limits, max(int(at_once) - 1, 0))
        if refusal is None:
            return "go"
        self._counter.dirty = True
        self._store.refuse(key, refusal.reason)
        kind, why = key_rules.describe_refusal(refusal.reason, refusal.wait_s)
        return f"no {refusal.wait_s} {kind} {why}"


def _render_gateway_metrics(paths: Paths, apart: Mapping[str, float]) -> str:
    """Return a gateway's own metrics; nothing before its plan exists."""
    plan = plans.read_plan(paths.plan)
    if not gateways.is_gateway(plan):
        return ""
    try:
        return render(gauges.collect_samples(paths, plan, apart), gauges.HELPS)
    except (OSError, ValueError, LookupError) as error:
        print(f"the metrics of the gateway are missing: {error}", file=sys.stderr, flush=True)
        return ""


async def _listen(address: Path, answered: Answered, mode: int) -> asyncio.AbstractServer:
    remove(str(address))
    server = await asyncio.start_unix_server(
        answered, str(address), limit=_LINE_BYTES, backlog=_MAX_BACKLOG
    )
    os.chmod(str(address), mode)
    return server


async def serve(
    paths: Paths, store: Store, stop: asyncio.Event, ready: Callable[[], None], *, gateway: bool
) -> None:
    """Answer until `stop`; `ready` is called once it answers."""
    counter = Counter(store, paths.usage_prom)
    # The group of the unit is that of the engines; the socket for gateways belongs to the proxy's
    # group.
    servers = [
        await _listen(paths.usage_socket, counter.serve, 0o660),
        await _listen(paths.usage_recent_socket, counter.tell, 0o600),
    ]
    machines = None
    pool = Pool(store.now, days=store.list_days) if gateway else None
    limits = Limits(store, counter, pool.ask if pool else counter.check)
    servers.append(await _listen(paths.usage_limits_socket, limits.serve, 0o600))
    if pool is not None:
        machines = Machines(paths, pool)
        counter.more = lambda: _render_gateway_metrics(paths, machines.measure_clock_skews())
        machines.follow()
    counter.settle()
    ready()
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), SETTLE_S)
        except asyncio.TimeoutError:
            if machines is not None:
                machines.follow()
                counter.dirty = True
            counter.settle()
    for server in servers:
        server.close()
    if machines is not None:
        machines.end()
    counter.settle()


async def _run(store: Store, notifier: Notifier, *, gateway: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(Paths(), store, stop, notifier.ready, gateway=gateway)


def main(argv: list[str]) -> int:
    """`usage-count KEEP_DAYS [--gateway]`: count until the process is ended."""
    gateway = argv[1:] == [_GATEWAY]
    if not argv or not argv[0].isdigit() or (argv[1:] and not gateway):
        raise HostError(f"usage: usage-count KEEP_DAYS [{_GATEWAY}]")
    notifier = Notifier.from_environment(os.environ)
    store = open_store(Paths().usage_db, int(argv[0]), os.environ.get(_BOOT, ""))
    try:
        asyncio.run(_run(store, notifier, gateway=gateway))
    finally:
        store.close()
    return 0


def read_running_code(address: Path, timeout: float = 5.0) -> str | None:
    """Return the digest of the running counter's code; None where none answers."""
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(timeout)
            channel.connect(str(address))
            channel.sendall(b'{"do":"hello"}\n')
            answer = json.loads(channel.makefile().readline())
    except (OSError, ValueError):
        return None
    return str(answer.get("code"))
