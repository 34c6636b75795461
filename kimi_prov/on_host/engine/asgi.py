"""What a web server of Python's and the code before it say to each other (ASGI), as types."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable

Scope = MutableMapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
