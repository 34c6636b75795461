"""The engine's check of the machine key: other local users get no answer.

A middleware of the engine's own web server. Only `/health` is open: the proxy requests it, and it
says no more than up or down, and that this engine counts what keys use.

Decides: the machine key between proxy and engine (who asks for it).
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import key_rules, paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine.control import Control
from kimi_prov.on_host.engine.metering import Meter
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from asyncio import AbstractServer

    from kimi_prov.on_host.engine.asgi import App, Message, Receive, Scope, Send

_OPEN = ("/health",)
_REFUSAL = b'{"error":{"message":"This port is for the proxy of this machine alone.","code":401}}'
_POLICY_VIOLATION = 1008


def is_open(scope: Scope) -> bool:
    """Return whether a request only asks whether the engine is up."""
    return scope["path"] in _OPEN and scope.get("method") in ("GET", "HEAD")


def get_bearer_key(scope: Scope) -> bytes:
    """Return the key of a request; empty where it has none, or several."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
    return bytes(key) if scheme.lower() == b"bearer" else b""


async def refuse(scope: Scope, send: Send, status: int, body: bytes) -> None:
    """Answer a request with a refusal in JSON."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Gate:
    """ASGI middleware that refuses requests without the machine key, and has the others counted."""

    def __init__(self, app: App, path: str = paths.MACHINE_KEY) -> None:
        self._app = Meter(app)
        self._path = Path(path)
        self._read_at: tuple[int, int] | None = None
        self._key = ""
        if not self._current():
            raise HostError(f"there is no key in {path}", "run `kimi-prov apply`")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "lifespan" and is_open(scope):
            await self._app(scope, receive, _announce_counting(send))
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, _open_control(scope, send))
        elif self._may_pass(scope):
            await self._app(scope, receive, send)
        else:
            await refuse(scope, send, 401, _REFUSAL)

    def _may_pass(self, scope: Scope) -> bool:
        return hmac.compare_digest(get_bearer_key(scope), self._current().encode())

    def _current(self) -> str:
        """Return the key as the file has it now; the last known one while the file is gone."""
        try:
            state = os.stat(str(self._path))
        except OSError:
            return self._key
        if (state.st_ino, state.st_mtime_ns) != self._read_at:
            self._key = machine_key.read(self._path) or self._key
            self._read_at = (state.st_ino, state.st_mtime_ns)
        return self._key


def _open_control(scope: Scope, send: Send) -> Send:
    """Return a `send` that also keeps the control socket open while the engine's server runs."""
    path = os.environ.get(paths.CONTROL_VARIABLE)
    opened: list[AbstractServer] = []

    async def opening(message: Message) -> None:
        if path and message["type"] == "lifespan.startup.complete":
            opened.append(await Control(path).open(scope["app"]))
        for server in opened if message["type"].startswith("lifespan.shutdown") else ():
            server.close()
        await send(message)

    return opening


def _announce_counting(send: Send) -> Send:
    """Return a `send` that also says, in a header, that this engine counts."""

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            told = (key_rules.COUNTS_HEADER.encode(), b"1")
            message = {**message, "headers": [*(message.get("headers") or ()), told]}
        await send(message)

    return telling
