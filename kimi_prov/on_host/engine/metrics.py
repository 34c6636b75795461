"""What an engine counts, as the text of its /metrics tells it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LINE = re.compile(r"^((?:vllm|sglang):\w+)(?:\{.*\})? (\S+)(?: \d+)?$", re.MULTILINE)
# What a server is at, by the names of vLLM (the same in 0.19.1, 0.25.1 and 0.32.0) and of sglang-kt
# 0.7.2: share of the cache in use, requests that run and wait, and since its start the requests
# that had to make room, prompt tokens that were looked up in the cache, and those found there.
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

# Moved by the steps of an engine alone: its web server alone moves none of them. vLLM's scheduler
# reports each step, and so each piece of a long prompt moves the use of the cache, long before a
# token; sglang's reports each piece of a prompt, and every 40th step of an answer.
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
    """What a server is at; None is what it does not tell."""

    cache_use: float | None
    running: float
    waiting: float
    preemptions: float | None
    queried_tokens: float | None
    hit_tokens: float | None


def sum_counts(metrics: str) -> dict[str, float]:
    """Sum each count over its labels, by its name with the engine's prefix (`vllm:NAME`).

    What is not finite is left out.
    """
    found: dict[str, float] = {}
    for name, value in _parse_rows(metrics):
        found[name] = found.get(name, 0.0) + value
    return found


def count_steps(metrics: str) -> dict[str, float]:
    """Give each count of the engine's steps, which move while it goes on, from its /metrics.

    Empty for a text that tells none of them.
    """
    return {name: value for name, value in sum_counts(metrics).items() if name in _STEPS}


def _find_largest(metrics: str) -> dict[str, float]:
    """Give the largest value of each name over its labels: of shares, whose sum says nothing."""
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
    """Read what a server of either engine is at; None where its requests are not told."""
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
    # A counter of sglang's with a label is not there until it counts: what is asked for is.
    if queried is not None:
        preemptions, hit = preemptions or 0.0, hit or 0.0
    return preemptions, queried, hit
