"""What a web server of Python's and the code before it say to each other (ASGI), as types."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, MutableMapping

Scope = MutableMapping[str, Any]
Message = Dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
