"""The types of messages between a Python web server and its middleware (ASGI)."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable

Scope = MutableMapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
