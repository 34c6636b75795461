"""The engine's control socket: whoever may write to it has the engine sleep and wake.

vLLM opens its own paths for that only in its development mode, together with others that run code.
The socket lies in a folder that only the engine's user and root enter, and no request of a client
reaches it. One line is an order, `sleep`, `wake` or `state`, and one line of JSON the answer:
`{"asleep": true}` or `{"error": "why"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import describe_error

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

SLEEP, WAKE, STATE = "sleep", "wake", "state"
# Its weights are copied to host memory. Level 2 would drop them, and nothing loads them again.
_LEVEL = 1
_ORDER_LIMIT_S = 10.0


class Control:
    """Serves the socket for as long as the engine's process runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._one_at_a_time = asyncio.Lock()

    async def open(self, app: Any) -> asyncio.AbstractServer:  # noqa: ANN401 - the engine's FastAPI application
        """Open the socket; `app.state.engine_client` is the engine. The caller closes it."""

        async def answer(reader: StreamReader, writer: StreamWriter) -> None:
            try:
                order = await asyncio.wait_for(reader.readline(), _ORDER_LIMIT_S)
                said = await self._obey(app.state.engine_client, order.decode().strip())
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()
            except (OSError, ValueError, asyncio.TimeoutError):
                pass
            finally:
                writer.close()

        # That of an engine that was killed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        return await asyncio.start_unix_server(answer, self._path)

    async def _obey(self, engine: Any, order: str) -> dict[str, object]:  # noqa: ANN401
        """Carry an order out, one after the other; what the engine raises is the answer."""
        try:
            async with self._one_at_a_time:
                asleep = bool(await engine.is_sleeping())
                if order == SLEEP and not asleep:
                    await engine.sleep(_LEVEL)
                elif order == WAKE and asleep:
                    await engine.wake_up()
                elif order not in (SLEEP, WAKE, STATE):
                    return {"error": f"unknown order: {order[:20]!r}"}
                asleep = bool(await engine.is_sleeping())
        except Exception as error:  # noqa: BLE001 - whoever gave the order is told
            return {"error": describe_error(error) or type(error).__name__}
        return {"asleep": asleep}
