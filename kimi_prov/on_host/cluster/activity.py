"""Whether clients use the engine, by its own counters: requests under way and tokens so far."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.on_host.engine.metrics import sum_counts

_WORK = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
)
_TOKENS = tuple(
    f"{engine}:{kind}_tokens_total"
    for engine in ("vllm", "sglang")
    for kind in ("generation", "prompt")
)


@dataclass(frozen=True)
class Activity:
    """Requests that run or wait, and tokens of prompts and answers since the start."""

    requests: float
    tokens: float


def read(metrics: str) -> Activity | None:
    """Parse the metrics of vLLM or sglang, of all engines together; None where they are missing."""
    found = sum_counts(metrics)
    work = [names for names in _WORK if set(names) <= found.keys()]
    if not work or not found.keys() & set(_TOKENS):
        return None
    return Activity(
        sum(found[name] for name in work[0]), sum(found.get(name, 0.0) for name in _TOKENS)
    )


class Idle:
    """Measures the time since the engine was last used. An unknown state counts as use."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._since = now
        self._tokens: float | None = None
        self._moved = now

    def note_activity(self, found: Activity | None, now: float) -> bool:
        """Record a reading; return whether the engine was not used for the limit."""
        if found is None or found.requests or found.tokens != self._tokens:
            self._since = now
        if found is not None and found.tokens != self._tokens:
            self._moved = now
        self._tokens = found.tokens if found else None
        return self._limit_s > 0 and now - self._since >= self._limit_s

    def note_own_request(self, found: Activity | None, tokens: float) -> None:
        """Record our own request of so many tokens: it counts as no use."""
        if found is not None and self._tokens is not None and found.tokens == self._tokens + tokens:
            self._tokens = found.tokens

    def count_still_s(self, now: float) -> float:
        """Return the seconds since tokens were made, whether requests wait or not."""
        return now - self._moved
