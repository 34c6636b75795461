"""An engine's counters and gauges, parsed from the text of its /metrics."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LINE = re.compile(r"^((?:vllm|sglang):\w+)(?:\{.*\})? (\S+)(?: \d+)?$", re.MULTILINE)
# The state of a server, by the names of vLLM (the same in 0.19.1, 0.25.1 and 0.32.0) and of
# sglang-kt 0.7.2: share of the cache in use, requests that run and wait, and since its start the
# preempted requests, prompt tokens that were looked up in the cache, and those found there.
_NAMES = (
    (
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
    ),
    (
        "sglang:token_usage",
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:num_retracted_requests_total",
        "sglang:prompt_tokens_total",
        "sglang:cached_tokens_total",
    ),
)

# Changed only by steps of the engine, never by its web server alone. vLLM's scheduler reports each
# step, so each piece of a long prompt changes the use of the cache, long before a token; sglang's
# reports each piece of a prompt, and every 40th step of an answer.
_STEPS = frozenset(
    (
        *("vllm:iteration_tokens_total_count", "vllm:iteration_tokens_total_sum"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        *("vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"),
        *("vllm:num_requests_running", "vllm:num_requests_waiting"),
        *("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        *("sglang:num_used_tokens", "sglang:token_usage", "sglang:num_retracted_requests_total"),
        *("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:gen_throughput"),
    )
)


@dataclass(frozen=True)
class State:
    """The state of a server; None for what it does not report."""

    cache_use: float | None
    running: float
    waiting: float
    preemptions: float | None
    queried_tokens: float | None
    hit_tokens: float | None


def sum_counts(metrics: str) -> dict[str, float]:
    """Sum each counter over its labels, by its name with the engine's prefix (`vllm:NAME`).

    Values that are not finite are left out.
    """
    found: dict[str, float] = {}
    for name, value in _parse_rows(metrics):
        found[name] = found.get(name, 0.0) + value
    return found


def count_steps(metrics: str) -> dict[str, float]:
    """Return the counters of the engine's steps, which change while it makes progress.

    Empty for a text without them.
    """
    return {name: value for name, value in sum_counts(metrics).items() if name in _STEPS}


def _find_largest(metrics: str) -> dict[str, float]:
    """Return the largest value of each name over its labels: for shares, which have no sum."""
    found: dict[str, float] = {}
    for name, value in _parse_rows(metrics):
        found[name] = max(found.get(name, value), value)
    return found


def _parse_rows(metrics: str) -> Iterator[tuple[str, float]]:
    for name, value in _LINE.findall(metrics):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            yield name, number


def parse_state(metrics: str) -> State | None:
    """Read the state of a server of either engine; None where the text does not report requests."""
    summed = sum_counts(metrics)
    for cache, running, waiting, *counts in _NAMES:
        if running in summed and waiting in summed:
            use = _find_largest(metrics).get(cache)
            return State(use, summed[running], summed[waiting], *_sum_known(summed, counts))
    return None


def _sum_known(
    summed: Mapping[str, float], names: list[str]
) -> tuple[float | None, float | None, float | None]:
    preemptions, queried, hit = (summed.get(name) for name in names)
    # sglang does not list a counter with a label before it counts: what is requested is 0 then.
    if queried is not None:
        preemptions, hit = preemptions or 0.0, hit or 0.0
    return preemptions, queried, hit
