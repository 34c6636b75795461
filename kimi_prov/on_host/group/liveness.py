"""Does the engine go on? Asked of the head's, whose steps every rank has a part in.

vLLM's own /health says no more than that its web server runs: it answers 200 while a rank is dead
or the network is cut. So the engine is alive when its steps move what it counts, or when it answers
a chat of one token. Each step of a long prompt moves the use of the cache, long before a token.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.engine.metrics import count_steps

# None when it lives, else why nobody can say so.
Told = Callable[[Optional[str]], None]


class Watch:
    """Asks the engine in threads of its own, and tells what came of each question.

    A chat may wait behind long prompts for longer than the limit: what is counted is looked at
    meanwhile, so that an engine which makes steps lives although it answers nothing.
    """

    def __init__(self, port: int, model: str, *, every_s: float, limit_s: float) -> None:
        self._port, self._model = port, model
        self._every_s, self._limit_s = every_s, limit_s
        self._last: dict[str, float] = {}
        self._answered = False
        self._chat: threading.Thread | None = None

    def start(self, told: Told) -> None:
        """Begin to ask; it goes on until this process ends."""
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
        """Whether what is counted has moved; a chat is what counts first: an engine warms up."""
        refusal, text = ready.send_request(self._port, "GET", "/metrics", timeout_s=self._limit_s)
        seen = {} if refusal else count_steps(text)
        last, self._last = self._last, seen or self._last
        return bool(last and seen) and seen != last

    def _ask(self, told: Told) -> None:
        reason = ready.request_token(self._port, self._model, timeout_s=self._limit_s)
        self._answered = self._answered or reason is None
        told(reason)
