"""Results of a tune in the form of a bench, so that its measurements become rows of speeds.

Decides: what of a tune counts as a measurement of a machine.
Held by: tests/unit/commands/test_contribute_tune.py.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.contract.documents.tune import TunedHost, TuneRound, TuneRow

# A host's part of a bench document, as far as it is read.
Result = dict[str, Any]


def list_results(hosts: dict[str, TunedHost]) -> dict[str, Result]:
    """Return a result of what serves by its host, and of each candidate by host and label."""
    results: dict[str, Result] = {}
    for name, host in hosts.items():
        served = host.get("served")
        if not served:
            results[name] = {"detail": host["detail"]}
            continue
        # Its second measurement would be a second row of the same thing.
        for row in (served, *host["candidates"]):
            if row.get("rounds") and row.get("serving"):
                key = name if row is served else f"{name}: {row['label']}"
                results[key] = _make_result(host, row)
    return results


def _make_result(host: TunedHost, row: TuneRow) -> Result:
    levels = list(_list_levels(row["rounds"]))
    requests = sum(one["requests"] for one in row["rounds"]) or 1
    load = host.get("load") or {}
    return {
        "ok": True,
        "detail": row["label"],
        "model": host["model"],
        "engine": host["engine"],
        "machine": host["machine"],
        "serving": row["serving"],
        "measured_at": host["measured_at"],
        "load": {"average": None, "busy": host["busy"]},
        "memory": {"bytes_per_s": None},
        "stand_ins": host["stand_ins"],
        "serve": {
            "input_tokens": round(sum(one["input_tokens"] for one in row["rounds"]) / requests),
            "output_tokens": round(sum(one["output_tokens"] for one in row["rounds"]) / requests),
            "load": {
                "rate_per_s": load.get("rate_per_s"),
                "images": load.get("images") or 0,
                "images_of_file": None,
                "chat": bool(load.get("chat")),
                "prompts": host["prompts_of_file"] or None,
            },
            "levels": levels,
        },
    }


def _list_levels(rounds: Sequence[TuneRound]) -> Iterator[Result]:
    for count in sorted({one["concurrency"] for one in rounds}):
        rows = [one for one in rounds if one["concurrency"] == count]
        first = _compute_median([one["ttft_s"]["median"] for one in rows])
        prompt = sum(one["input_tokens"] for one in rows) / sum(one["requests"] for one in rows)
        yield {
            "concurrency": count,
            "requests": sum(one["requests"] for one in rows),
            "decode_tok_s": _compute_median([one["decode_tok_s"] for one in rows]),
            "aggregate_tok_s": _compute_median([one["aggregate_tok_s"] for one in rows]),
            "prefill_tok_s": round(prompt / first, 1) if first else None,
        }


def _compute_median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None
