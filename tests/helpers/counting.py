"""The counter of a machine or a gateway, beside the real HAProxy of a test."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

from waiting import HANGS_S

from kimi_prov.on_host.usage import counter
from kimi_prov.on_host.usage.store import Store

if TYPE_CHECKING:
    from running_proxy import Proxy

KEPT_DAYS = 400


class Counting(threading.Thread):
    """The counter of a machine or a gateway, in a thread of its own."""

    def __init__(self, proxy: Proxy, *, gateway: bool = False) -> None:
        super().__init__(daemon=True)
        self.paths, self.gateway = proxy.paths, gateway
        for place in (self.paths.usage_db, self.paths.usage_socket):
            place.parent.mkdir(parents=True, exist_ok=True)
        self.ready = threading.Event()
        self.start()
        assert self.ready.wait(HANGS_S)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        store = Store(self.paths.usage_db, keep_days=KEPT_DAYS)
        ready = self.ready.set
        await counter.serve(self.paths, store, self._over, ready, gateway=self.gateway)
        store.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(HANGS_S)

    def used(self, key: str, request: str, tokens: int) -> None:
        """Tell what a request used, as an engine of this machine does."""
        said = {"do": "tell", "id": request, "key": key, "prompt": tokens, "completion": 0}
        asyncio.run(self._say({**said, "ended": True}))

    async def _say(self, said: dict[str, object]) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self.paths.usage_socket))
        writer.write(json.dumps(said).encode() + b"\n")
        assert json.loads(await reader.readline()) == {"ok": True}
        writer.close()
