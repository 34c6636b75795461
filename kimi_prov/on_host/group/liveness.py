"""Checks whether the head's engine makes progress; every rank has a part in its steps.

vLLM's own /health says no more than that its web server runs: it answers 200 while a rank is dead
or the network is cut. So the engine counts as alive when its counters change, or when it answers a
chat of one token. Each step of a long prompt changes the use of the cache, long before a token.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.engine.metrics import count_steps

# The result of a question: None when the engine lives, else the reason.
Told = Callable[[Optional[str]], None]


class Watch:
    """Asks the engine in its own threads, and reports the result of each question.

    A chat may wait behind long prompts for longer than the limit. The counters are read meanwhile,
    so an engine that makes steps counts as alive although it answers nothing.
    """

    def __init__(self, port: int, model: str, *, every_s: float, limit_s: float) -> None:
        self._port, self._model = port, model
        self._every_s, self._limit_s = every_s, limit_s
        self._last: dict[str, float] = {}
        self._answered = False
        self._chat: threading.Thread | None = None

    def start(self, told: Told) -> None:
        """Start to ask; this goes on until the process ends."""
        threading.Thread(target=self._watch, args=[told], name="liveness", daemon=True).start()

    def _watch(self, told: Told) -> None:
        while True:
            if self._moved() and self._answered:
                told(None)
            elif self._chat is None or not self._chat.is_alive():
                self._chat = threading.Thread(target=self._ask, args=[told], daemon=True)
                self._chat.start()
            time.sleep(self._every_s if self._answered else min(1.0, self._every_s))

    def _moved(self) -> bool:
        """Return whether a counter of the engine's steps has changed since the last call."""
        refusal, text = ready.send_request(self._port, "GET", "/metrics", timeout_s=self._limit_s)
        seen = {} if refusal else count_steps(text)
        last, self._last = self._last, seen or self._last
        return bool(last and seen) and seen != last

    def _ask(self, told: Told) -> None:
        reason = ready.request_token(self._port, self._model, timeout_s=self._limit_s)
        self._answered = self._answered or reason is None
        told(reason)
