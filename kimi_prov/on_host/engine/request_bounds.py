"""Holds the body of a request to bounds, before the engine's own parser and models see it.

They read a body in the event loop, where every other request waits for them. So a body has a
largest size, counted also where nothing tells its length, and JSON a largest number of names,
values, items and levels. What takes long to read goes in one request after another, and others get
as much time in between as it took.

Decides: which requests an engine reads, and how many at once.
Applied by: playbooks/site.yml.
Held by: tests/component/on_host/engine/test_request_bounds.py, tests/lab/test_large_requests.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract import paths
from kimi_prov.on_host.engine.json_scan import Limits, Scan, TooMuchError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.on_host.engine.asgi import App, Message, Receive, Scope, Send

# The largest body in bytes, for an engine of a job or a pod; a machine's is in its plan.
BODY_MAX = "KIMI_REQUEST_BODY_MAX"
# Where neither says it: the plan is of an older version.
_FALLBACK_BYTES = 64 << 20
# A request that is larger, or has more values, takes its turn.
_SMALL_BYTES, _SMALL_VALUES = 4096, 64
# Fields that decide what a request costs, and the bytes that their values need at most.
FIELDS = ("stream", "stream_options", "background", "n", "best_of")
_ANSWERS = ("n", "best_of")
# Answers that one request may ask for. vLLM takes 16384, which would keep all others waiting.
MAX_ANSWERS = 128
_FIELD_BYTES = 4096
_MAX_DIGITS = 18
# Rounds of the event loop in which the engine has read a body that it was given.
_ROUNDS = 20
_MAX_YIELD_S = 1.0
# Seconds of reading between two pauses.
_SLICE_S = 0.001


class RefusedError(Exception):
    """A request that is refused in the form that OpenAI's clients read."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    async def send(self, send: Send) -> None:
        """Answer the request."""
        error = {
            "message": str(self),
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


class Body(NamedTuple):
    """The body of a request, and what the scan found in it."""

    data: bytes
    scan: Scan

    def read_fields(self) -> dict[str, object]:
        """Return the values of FIELDS that it has; none where it is not JSON."""
        try:
            return {
                name: json.loads(self.data[start:end])
                for name, (start, end) in self.scan.spans.items()
            }
        except (ValueError, RecursionError):
            return {}

    def count_answers(self) -> int:
        """Return how many answers it asks for: `n` of each prompt."""
        fields = self.read_fields()
        of_each = max(_read_count(fields.get(name)) for name in _ANSWERS)
        return of_each * max(self.scan.prompts, 1)

    def with_field(self, name: str, value: object) -> Body:
        """Return the body with another value of an outermost field; it is an object with fields."""
        text = json.dumps(value).encode()
        if name in self.scan.spans:
            start, end = self.scan.spans[name]
            return self._replace(data=self.data[:start] + text + self.data[end:])
        at = (self.scan.root or 0) + 1
        field = json.dumps(name).encode() + b":" + text + b","
        return self._replace(data=self.data[:at] + field + self.data[at:])


class SizeLimit:
    """The largest body: the environment's, else that of the machine's plan as it is now."""

    def __init__(self, path: str = paths.PLAN) -> None:
        self._path = path
        self._read_at: tuple[int, int] | None = None
        text = os.environ.get(BODY_MAX, "")
        self._fixed = int(text) if text.isdigit() else None
        self._bytes = _FALLBACK_BYTES

    def read_bytes(self) -> int:
        """Return the number of bytes; the last known one while the plan is not to be read."""
        if self._fixed is not None:
            return self._fixed
        try:
            state = os.stat(self._path)
            if (state.st_ino, state.st_mtime_ns) != self._read_at:
                self._read_at = (state.st_ino, state.st_mtime_ns)
                with open(self._path, "rb") as file:
                    size = json.load(file)["proxy"]["request_body_max_bytes"]
                self._bytes = size if isinstance(size, int) and size > 0 else self._bytes
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return self._bytes


def build_environment(plan: MachinePlan) -> dict[str, str]:
    """Return the variable of an engine of a job or a pod; none where an older plan has no size."""
    size = plan["proxy"].get("request_body_max_bytes")
    return {BODY_MAX: str(size)} if size else {}


class Turns:
    """One turn at a time. Each key waits for its own requests first, so no key is last for ever."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._own: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def wait(self, key: str) -> AsyncIterator[None]:
        """Be the only one that reads."""
        async with self._own.setdefault(key, asyncio.Lock()), self._turn:
            yield

    def begin(self, key: str, begun: asyncio.Event, delivered: asyncio.Event) -> asyncio.Task[None]:
        """Take a turn that lasts until the engine has read what was `delivered`."""
        task = asyncio.get_running_loop().create_task(self._hold(key, begun, delivered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hold(self, key: str, begun: asyncio.Event, delivered: asyncio.Event) -> None:
        async with self.wait(key):
            begun.set()
            await delivered.wait()
            since = time.monotonic()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            await asyncio.sleep(min(time.monotonic() - since, _MAX_YIELD_S))


class RequestBounds:
    """ASGI middleware before the engine."""

    def __init__(
        self, app: App, size: SizeLimit | None = None, limits: Limits | None = None
    ) -> None:
        self._app = app
        self._size = size or SizeLimit()
        self._limits = limits or Limits()
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await self.read(scope, receive)
        except RefusedError as refused:
            await refused.send(send)
            return
        if body is not None:
            await self.pass_on(scope, body, receive, send)

    async def read(self, scope: Scope, receive: Receive, key: str = "") -> Body | None:
        """Return the body within its bounds; None where the client has gone. Raises RefusedError.

        `key`: whose turn it is where reading takes long.
        """
        data = await self._collect(scope, receive)
        if data is None:
            return None
        if not json.detect_encoding(data).startswith("utf-8"):
            raise RefusedError(400, "invalid_encoding", "The request is not in UTF-8.")
        scan = Scan(data, self._limits, FIELDS)
        try:
            if len(data) <= _SMALL_BYTES:
                for _ in scan.run():
                    pass
            else:
                async with self._turns.wait(key):
                    await _run_slowly(scan)
        except TooMuchError as error:
            raise RefusedError(400, "request_too_complex", str(error), error.param) from None
        for name, (start, end) in scan.spans.items():
            if end - start > _FIELD_BYTES:
                said = f"{name} has {end - start} bytes; the most is {_FIELD_BYTES}."
                raise RefusedError(400, "request_too_complex", said, name)
        body = Body(data, scan)
        answers = body.count_answers()
        if answers > MAX_ANSWERS:
            said = f"The request asks for {answers} answers; the most is {MAX_ANSWERS}."
            raise RefusedError(400, "too_many_answers", said, "n")
        return body

    async def pass_on(
        self, scope: Scope, body: Body, receive: Receive, send: Send, key: str = ""
    ) -> None:
        """Give the engine a request whose body was read; in its turn where it is no small one."""
        begun, delivered = asyncio.Event(), asyncio.Event()

        async def replay() -> Message:
            if delivered.is_set():
                return await receive()
            delivered.set()
            return {"type": "http.request", "body": body.data, "more_body": False}

        if len(body.data) <= _SMALL_BYTES and body.scan.values <= _SMALL_VALUES:
            await self._app(scope, replay, send)
            return
        turn = self._turns.begin(key, begun, delivered)
        try:
            await begun.wait()
            await self._app(scope, replay, send)
        finally:
            delivered.set()
            if not begun.is_set():
                turn.cancel()

    async def _collect(self, scope: Scope, receive: Receive) -> bytes | None:
        most = self._size.read_bytes()
        declared = next(
            (value for name, value in scope["headers"] if name == b"content-length"), b""
        )
        if declared.isdigit() and (len(declared) > _MAX_DIGITS or int(declared) > most):
            raise _make_size_error(declared.decode(), most)
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _make_size_error(f"{size} or more", most)
            if not message.get("more_body"):
                return b"".join(parts)


def _read_count(value: object) -> int:
    """Return a number as the engines' models take it, from a word too; 1 for what they refuse."""
    try:
        return max(int(float(value)), 1) if isinstance(value, (int, float, str)) else 1
    except OverflowError:
        return MAX_ANSWERS + 1
    except ValueError:
        return 1


def _make_size_error(size: str, most: int) -> RefusedError:
    said = f"The request has {size} bytes; the most is {most}."
    return RefusedError(413, "request_too_large", said)


async def _run_slowly(scan: Scan) -> None:
    """Read in slices, and leave others as much time as they take."""
    since = time.monotonic()
    for _ in scan.run():
        taken = time.monotonic() - since
        if taken > _SLICE_S:
            await asyncio.sleep(min(taken, _MAX_YIELD_S))
            since = time.monotonic()
