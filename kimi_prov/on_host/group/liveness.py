"""Does the engine go on? Asked of the head's, whose steps every rank has a part in.

vLLM's own /health says no more than that its web server runs: it answers 200 while a rank is dead
or the network is cut. So the engine is alive when its steps move what it counts, or when it answers
a chat of one token. Each step of a long prompt moves the use of the cache, long before a token.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Callable, Dict, Optional

from kimi_prov.on_host.engine import ready

# Set by the scheduler's own report of a step: the web server alone moves none of them.
_STEPS = re.compile(
    r"^(vllm:(?:iteration_tokens_total_(?:count|sum)|prompt_tokens_total|generation_tokens_total|"
    r"kv_cache_usage_perc|num_requests_(?:running|waiting)|num_preemptions_total))"
    r"(?:\{.*\})? (\S+)$",
    re.MULTILINE,
)

# None when it lives, else why nobody can say so.
Told = Callable[[Optional[str]], None]


def steps(metrics: str) -> Dict[str, float]:
    """Sum each count of the engine's steps over its labels, from the text of /metrics."""
    found: Dict[str, float] = {}
    for name, value in _STEPS.findall(metrics):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


class Watch:
    """Asks the engine in threads, and tells what came of each question.

    Steps are looked at while a chat waits: behind a long prompt it may wait for minutes.
    """

    def __init__(self, port: int, model: str, *, every_s: float, limit_s: float) -> None:
        self._port, self._model = port, model
        self._every_s, self._limit_s = every_s, limit_s
        self._answered = False
        self._stepped = float("-inf")

    def start(self, told: Told) -> None:
        """Begin to ask; it goes on until this process ends."""
        for ask in (self._steps, self._chats):
            threading.Thread(target=ask, args=[told], name="liveness", daemon=True).start()

    def _steps(self, told: Told) -> None:
        last: Dict[str, float] = {}
        while True:
            time.sleep(self._every_s)
            refusal, text = ready.ask(self._port, "GET", "/metrics", timeout_s=self._limit_s)
            now = {} if refusal else steps(text)
            # What moves before the first answer are the engine's own questions as it warms up.
            if self._answered and last and now and now != last:
                self._stepped = time.monotonic()
                told(None)
            last = now or last

    def _chats(self, told: Told) -> None:
        while True:
            if time.monotonic() - self._stepped > 1.5 * self._every_s:
                reason = ready.chat(self._port, self._model, timeout_s=self._limit_s)
                self._answered = self._answered or reason is None
                told(reason)
            time.sleep(self._every_s if self._answered else min(1.0, self._every_s))
