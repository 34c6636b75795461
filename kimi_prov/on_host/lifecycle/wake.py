"""Wakes a machine that is asleep when a client with a valid key asks: kimi-wake.service.

While the machine is asleep, HAProxy sends such requests here, over kimi-wake.socket; it has checked
their keys before, and replaced them by the machine key. The first request starts the engines, once
for all. `refuse` answers each request with 503 and the progress of the start; `hold` keeps the
request and passes it on to an engine unchanged, byte by byte. The service ends when the machine
serves.

Decides: when a machine is idle, and who wakes it (what a wake does).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import socket
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import smoke_test, stop_state
from kimi_prov.on_host.engine import engine_sleep
from kimi_prov.on_host.lifecycle import run, starts
from kimi_prov.on_host.system import apply_lock, files, units
from kimi_prov.on_host.system.process import run as call

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ExpectedStart
    from kimi_prov.contract.documents.plan import MachinePlan

HOLD = "hold"
# systemd passes the first socket as this file descriptor.
_SOCKET_FD = 3
_POLL_INTERVAL_S = 1.0
# Seconds without a request and without a start under way, after which the service ends.
_LEAVES_S = 30.0
# Seconds after a start that failed: each start takes minutes, so the next is not tried at once. A
# start that was refused because somebody works on the machine is tried again after _BUSY_S.
_AGAIN_S, _BUSY_S = 300.0, 5.0
_CHUNK = 1 << 16
# Bytes of a waiting request that are read here; HAProxy keeps the rest.
_HELD_BYTES = 1 << 20
_RETRY_S = 60
# HAProxy sends the rest of a request and closes as soon as it has the answer.
_CLOSES_S = 5.0


class BusyError(HostError):
    """Somebody works on the machine, so no start was begun."""


class Waker:
    """One start for all requests that wait; `reason` is why it failed."""

    def __init__(self, paths: Paths, plan: MachinePlan) -> None:
        self.paths = paths
        self.plan = plan
        self.began = 0.0
        self.expected: ExpectedStart = {"seconds": None, "basis": ""}
        self.line = "it begins"
        self.reason: str | None = None
        self.again_at = -math.inf
        self.served = asyncio.Event()
        self.over = asyncio.Event()
        self.waiting = 0
        self.last = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        ports = [port for row in plan["instances"] if (port := row.get("port"))]
        self._ports = itertools.cycle(ports)

    @property
    def under_way(self) -> bool:
        """Return whether engines are being started."""
        return self._task is not None and not self._task.done()

    def wake(self) -> None:
        """Start the engines, unless a start is under way or one has just failed."""
        self.last = time.monotonic()
        if self.served.is_set() and stop_state.read(self.paths).get("state") == stop_state.ASLEEP:
            # The machine fell asleep again while this service still ran.
            self.served.clear()
        if self.under_way or self.served.is_set() or self.last < self.again_at:
            return
        self.began, self.reason = self.last, None
        self.over = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._start())

    def must_stay(self) -> bool:
        """Return whether a request waits or may come soon, or a failed start is remembered."""
        now = time.monotonic()
        if self.waiting or self.under_way or now - self.last < _LEAVES_S:
            return True
        return now < self.again_at and bool(stop_state.read(self.paths))

    async def _start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._start_and_wait)
            self.served.set()
        except Exception as error:  # noqa: BLE001  (whatever it was, those who wait are told)
            name = type(error).__name__
            self.reason = error.message if isinstance(error, HostError) else f"{name}: {error}"
            again_s = _BUSY_S if isinstance(error, BusyError) else _AGAIN_S
            self.again_at = time.monotonic() + again_s
            print(f"the start failed: {self.reason}", flush=True)
        finally:
            self.over.set()

    def _start_and_wait(self) -> None:
        """Start the engines and wait until they have answered. Raises HostError on failure."""
        # The service that puts the machine to sleep has to end first.
        while units.read_states(unit_names.REST)[unit_names.REST]["state"] == "activating":
            time.sleep(_POLL_INTERVAL_S)
        found = stop_state.read(self.paths)
        if found.get("state") != stop_state.ASLEEP:
            # The operator has started or stopped the machine meanwhile.
            if found:
                raise HostError(stop_state.describe_for_clients(found))
            return
        if holder := apply_lock.find_holder():
            raise BusyError(
                f"{holder.get('user')} works on this machine: it is not woken until that ends"
            )
        begun = starts.begin(self.paths, self.plan, "wake")
        self.expected = begun["expected"]
        print(f"a client asks: starting; {self.expected['basis']}", flush=True)
        self.paths.waking.write_text("")
        try:
            # A stop looks for this file: write it first, then check that nobody has stopped the
            # machine meanwhile.
            self._require_not_stopped()
            slept = engine_sleep.is_engine_asleep(found)
            slept = slept and engine_sleep.wake_or_stop(self.paths, self.plan, found, self._say)
            run.start_units(self.paths, self.plan)
            until = time.monotonic() + float(self.plan["timeouts"]["start_s"])
            run.wait_for_fill(self.plan, self._say)
            names, together = run.list_engine_units(self.plan), bool(self.plan.get("group"))
            run.wait_for_units(names, until, self._say, self._require_going_on, together=together)
            run.wait_for_balance(self.paths, None, until)
            self._require_not_stopped()
        except HostError as error:
            self._sleep_again(error)
            raise
        taken = time.monotonic() - self.began
        if slept:
            starts.record_wake(self.paths, self.plan, taken)
        else:
            starts.record_start(self.paths, self.plan, first_token_s=round(taken, 1))
        stop_state.clear(self.paths)
        print(f"awake: the engine answers {taken:.1f} s after the first request", flush=True)

    def _require_going_on(self) -> None:
        """Raise HostError where the start is not requested any more, or a group's rounds failed."""
        self._require_not_stopped()
        if error := smoke_test.find_round_failure(self.paths, self.plan):
            raise error

    def _require_not_stopped(self) -> None:
        """Raise HostError where the operator has stopped the machine meanwhile."""
        found = stop_state.read(self.paths)
        if found.get("state") == stop_state.STOPPED:
            raise HostError(stop_state.describe_for_clients(found))

    def _say(self, line: str) -> None:
        self.line = line

    def _sleep_again(self, error: HostError) -> None:
        """Stop engines that would try again and again, and store why they did not start."""
        files.remove(str(self.paths.waking))
        files.remove(str(self.paths.begun))
        found = stop_state.read(self.paths)
        if found.get("state") == stop_state.STOPPED:
            # The stop that came meanwhile does the rest, and lets answers end.
            return
        if not isinstance(error, engine_sleep.GpusHeldError):
            call("systemctl", "stop", *run.list_engine_units(self.plan), timeout=900)
        if found:
            stop_state.write(self.paths, {**found, "failed": error.message})

    # --- clients -------------------------------------------------------------------------------

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one request that HAProxy sends."""
        self.waiting += 1
        try:
            # HAProxy itself opens connections that send nothing: they wake no engine.
            first = await reader.read(_CHUNK)
            if not first:
                return
            self.wake()
            if self.plan["rest"]["wake"] == HOLD:
                await self._hold_request(first, reader, writer)
            else:
                # The start may fail at once.
                await asyncio.sleep(0)
                _answer(writer, *self._build_progress_answer())
            with contextlib.suppress(OSError):
                await writer.drain()
            await _read_until_closed(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.waiting -= 1
            self.last = time.monotonic()
            writer.close()

    def _build_progress_answer(self) -> tuple[int, dict[str, Any]]:
        """Return the Retry-After in seconds and the body that says the progress of the start."""
        if self.reason is not None and not self.under_way:
            again = max(1, math.ceil(self.again_at - time.monotonic()))
            return min(again, _RETRY_S), _build_error(
                "model_start_failed",
                f"The model was asleep and could not be started: {self.reason}. It is tried again "
                f"for a request in {again} s.",
            )
        elapsed, total = time.monotonic() - self.began, self.expected["seconds"]
        if self.served.is_set():
            return 1, _build_error("model_starting", "The model is awake; try again.")
        left = None if total is None else max(1.0, float(total) - elapsed)
        takes = f"about {left:.0f} s more" if left else "how long that takes is not known"
        body = _build_error(
            "model_starting",
            f"The model was asleep and is starting since {elapsed:.0f} s, {takes}; try again.",
        )
        body["error"]["progress"] = {
            "elapsed_seconds": round(elapsed, 1),
            "expected_seconds": total,
            "line": self.line[:200],
        }
        return (_RETRY_S if left is None else min(_RETRY_S, math.ceil(left))), body

    async def _hold_request(self, first: bytes, reader: StreamReader, writer: StreamWriter) -> None:
        """Hold a request until an engine answers it, the start fails, or its client is gone."""
        held, gone = bytearray(first), asyncio.Event()

        async def listen() -> None:
            while len(held) < _HELD_BYTES:
                piece = await reader.read(_CHUNK)
                if not piece:
                    gone.set()
                    return
                held.extend(piece)

        listener = asyncio.create_task(listen())
        left = asyncio.create_task(gone.wait())
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({left, over}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listener, left, over):
            task.cancel()
        await asyncio.gather(listener, left, over, return_exceptions=True)
        if gone.is_set() or reader.at_eof():
            return
        if not self.served.is_set():
            _answer(writer, *self._build_progress_answer())
            return
        await self._hand_over(bytes(held), reader, writer)

    async def _hand_over(self, held: bytes, reader: StreamReader, writer: StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", next(self._ports))
        try:
            here.write(held)
            on = asyncio.create_task(_copy(reader, here))
            back = asyncio.create_task(_copy(there, writer))
            await asyncio.wait({on, back}, return_when=asyncio.FIRST_COMPLETED)
            if not back.done():
                # The client is gone, or has sent everything: HAProxy closes only when the client is
                # gone.
                back.cancel()
            on.cancel()
            await asyncio.gather(on, back, return_exceptions=True)
        finally:
            here.close()


async def _read_until_closed(reader: StreamReader, writer: StreamWriter) -> None:
    """Mark the answer as complete, and read on until HAProxy has closed.

    If a request is not read to its end, a close makes HAProxy's next write fail, and HAProxy then
    breaks off the client's connection instead of passing the answer on.
    """

    async def read_out() -> None:
        while await reader.read(_CHUNK):
            pass

    writer.write_eof()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read_out(), _CLOSES_S)


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    while piece := await reader.read(_CHUNK):
        writer.write(piece)
        await writer.drain()


def _build_error(code: str, message: str) -> dict[str, Any]:
    kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _answer(writer: StreamWriter, retry_s: int, body: Mapping[str, Any]) -> None:
    text = json.dumps(body).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Retry-After: {retry_s}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + text)


async def serve(paths: Paths, plan: MachinePlan, listening: socket.socket) -> None:
    """Answer until the machine serves and no request waits any more."""
    waker = Waker(paths, plan)
    while waker.must_stay():
        # Not start_unix_server: in Python 3.13 it removes the socket's file at its end. The file
        # belongs to systemd, and without it no request would wake the machine again.
        server = await asyncio.start_server(waker.serve, sock=listening.dup(), backlog=4096)
        async with server:
            while waker.must_stay():
                await asyncio.sleep(_POLL_INTERVAL_S)
        # Connections that were accepted at the last moment are counted by then, and served first.
        await asyncio.sleep(_POLL_INTERVAL_S)


def main(argv: list[str]) -> int:
    """`wake`: serve the socket that systemd passes on."""
    del argv
    paths = Paths()
    with socket.socket(fileno=_SOCKET_FD) as listening:
        asyncio.run(serve(paths, run.read_applied_plan(paths), listening))
    return 0
