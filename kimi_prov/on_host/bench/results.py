"""Figures from the results of the engine's bench client: of a run, and of a load's rounds."""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# For these, the least and the greatest of several rounds are reported.
_SPREAD = ("decode_tok_s", "aggregate_tok_s", "prefill_tok_s")
_LATENCIES = ("ttft_s", "tpot_s", "itl_s")
_SUMS = ("requests", "failed", "left_out", "input_tokens", "output_tokens")
_FIGURES = 5


def read_result(run: Mapping[str, Any], text: str, sampled: int | None = None) -> dict[str, Any]:
    """Read the result file of a run of either client; seconds, and tokens a second.

    `sampled` is the number of requests that the client itself announced: sglang's skips prompts and
    answers of under 2 tokens, and does not write how many failed. Raises HostError where the file
    holds no answered request.
    """
    level, asked = run["level"], run["requests"]
    try:
        found = json.loads(text.strip().splitlines()[-1] if "\n{" in text.strip() else text)
    except ValueError:
        raise HostError("the bench client left no result") from None
    done = int(found.get("completed") or 0)
    told = found.get("failed")
    failed = int(told) if isinstance(told, int) else min(sampled or asked, asked) - done
    if not done:
        raise HostError(f"none of {failed or asked} requests was answered")
    ttft_s = _get_seconds(found, "median_ttft_ms")
    tpot_s = _get_seconds(found, "median_tpot_ms")
    prompt = float(found["total_input_tokens"]) / done
    return {
        "concurrency": level,
        "requests": done,
        "failed": failed,
        # The prompts that the client skipped: it takes only prompts within its own limits.
        "left_out": max(0, asked - done - failed),
        "seconds": round(float(found["duration"]), 3),
        "input_tokens": int(found["total_input_tokens"]),
        "output_tokens": int(found["total_output_tokens"]),
        "ttft_s": {"median": ttft_s, "p99": _get_seconds(found, "p99_ttft_ms")},
        "tpot_s": {"median": tpot_s, "p99": _get_seconds(found, "p99_tpot_ms")},
        # Tokens that arrive together have no time between them: 0 is a measurement here.
        "itl_s": {
            "median": _get_seconds(found, "median_itl_ms", least=0.0),
            "p99": _get_seconds(found, "p99_itl_ms", least=0.0),
        },
        "decode_tok_s": round(1 / tpot_s, 2) if tpot_s else None,
        "aggregate_tok_s": round(float(found["output_throughput"]), 2),
        # Versions of vLLM's client count the tokens of an image differently.
        "prefill_tok_s": round(prompt / ttft_s, 1) if ttft_s and not run.get("seen") else None,
    }


def _get_seconds(found: Mapping[str, Any], name: str, *, least: float = 1e-9) -> float | None:
    value = found.get(name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        return None
    return round(value / 1000, _FIGURES)


def combine_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a load's figures: medians over its rounds, and the sums of what is counted.

    `spread` has the least and the greatest of each speed, and of the median time to the first
    token; None for a single round.
    """
    first = rounds[0]
    found: dict[str, Any] = {"concurrency": first["concurrency"], "rounds": len(rounds)}
    for name in _SUMS:
        found[name] = sum(row[name] for row in rounds)
    found["seconds"] = round(sum(row["seconds"] for row in rounds), 3)
    for name in _LATENCIES:
        found[name] = {
            key: _compute_median([row[name][key] for row in rounds]) for key in ("median", "p99")
        }
    for name in _SPREAD:
        found[name] = _compute_median([row[name] for row in rounds])
    found["spread"] = None
    if len(rounds) > 1:
        found["spread"] = {name: _compute_range([row[name] for row in rounds]) for name in _SPREAD}
        found["spread"]["ttft_s"] = _compute_range([row["ttft_s"]["median"] for row in rounds])
    return found


def _compute_median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), _FIGURES) if known else None


def _compute_range(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"low": min(known), "high": max(known)} if known else None


def group_by_level(
    runs: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Group the results of runs by their load, in the order of the sweep."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for run, result in zip(runs, results):
        if run["round"]:
            found.setdefault(run["level"], []).append(result)
    return [combine_rounds(rows) for rows in found.values()]


def describe_warm_up(
    runs: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the figures of the warm-up, which are in no others; None without a warm-up."""
    for run, result in zip(runs, results):
        if not run["round"]:
            names = ("concurrency", "requests", "failed", "seconds", "ttft_s")
            return {name: result[name] for name in names}
    return None
