"""Whether anybody uses the engine, by its own counters: requests at work and tokens so far."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_LINE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$", re.MULTILINE)
_WORK = ("num_requests_running", "num_requests_waiting")
_TOKENS = ("generation_tokens_total", "prompt_tokens_total")


@dataclass(frozen=True)
class Activity:
    """Requests that run or wait, and tokens of prompts and answers since the start."""

    requests: float
    tokens: float


def read(metrics: str) -> Optional[Activity]:
    """Read vLLM's metrics, of all its engines together; None where they are not there."""
    rows = [(name, float(value)) for name, value in _LINE.findall(metrics)]
    names = {name for name, _ in rows}
    if not set(_WORK) <= names or not names & set(_TOKENS):
        return None
    return Activity(
        sum(value for name, value in rows if name in _WORK),
        sum(value for name, value in rows if name in _TOKENS),
    )


class Idle:
    """Counts the time since the engine was last used. What is not known counts as use."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._since = now
        self._tokens: Optional[float] = None
        self._moved = now

    def seen(self, found: Optional[Activity], now: float) -> bool:
        """Take down what was read; whether nobody has used the engine for the limit."""
        if found is None or found.requests or found.tokens != self._tokens:
            self._since = now
        if found is not None and found.tokens != self._tokens:
            self._moved = now
        self._tokens = found.tokens if found else None
        return self._limit_s > 0 and now - self._since >= self._limit_s

    def own(self, found: Optional[Activity], tokens: float) -> None:
        """Take down a request of ours, of so many tokens: it is nobody's use."""
        if found is not None and self._tokens is not None and found.tokens == self._tokens + tokens:
            self._tokens = found.tokens

    def still_s(self, now: float) -> float:
        """Seconds since tokens were made, whether somebody waits for some or not."""
        return now - self._moved
