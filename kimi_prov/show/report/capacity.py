"""Compute how many requests the cache holds, by the length of their context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget as Target


_MIN_CONTEXT = 4096


def count_cache_tokens(target: Target) -> int:
    """Return the tokens that the caches of all instances hold."""
    plan = target["plan"]
    return int(plan["memory"]["kv_tokens_max"]) * max(1, len(plan["instances"]))


def compute_capacity(target: Target) -> list[tuple[int, int]]:
    """Return the requests that the cache holds at once for each length of context, in tokens.

    Lengths double up to the model's longest context.
    """
    plan = target["plan"]
    copies = max(1, len(plan["instances"])) * int(plan["parallel"]["data"])
    tokens = count_cache_tokens(target) // copies
    most = int(plan["model"]["context_max"])
    lengths = [_MIN_CONTEXT << n for n in range(32) if _MIN_CONTEXT << n < most]
    return [
        (length, copies * (tokens // length)) for length in [*lengths, most] if tokens >= length
    ]
