"""A short sample of the machine's activity: begun, and read a moment later.

with Sample(plan, port_rows) as sample: ... do something else ...; sample.read()

Decides: what `status` samples of this moment.
Applied by: playbooks/status.yml.
Held by: tests/unit/on_host/status/test_sample.py, tests/unit/on_host/status/test_perf.py,
  tests/unit/show/live/test_watch_screen.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine import metrics, ready
from kimi_prov.on_host.status import gpus
from kimi_prov.on_host.status.perf import Sampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.status.activity import (
        CounterRates,
        EngineNow,
        NowStatus,
        TokenRates,
    )
    from kimi_prov.on_host.probe.gpu_load import GpuNow as GpuReading

# Seconds between the two readings, at least; and the limit of one reading.
MIN_INTERVAL_S = 1.0
_TIMEOUT_S = 3.0
# Since an engine's start, by the names of either engine: tokens of answers, and of prompts.
_TOKENS = (
    ("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
    ("sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
)
# sglang's own rate between the ends of two requests, when its counters of tokens stand still.
_SGLANG_RATE = "sglang:gen_throughput"


class Sample:
    """A sample that begins when the object is made."""

    def __init__(self, plan: MachinePlan) -> None:
        self._instances = [row for row in plan.get("instances") or () if row.get("port")]
        self._ports = [port for row in self._instances if (port := row["port"])]
        # The GPUs of the last reading.
        self.cards: list[GpuReading] = []
        self._counters = Sampler()
        self._counters.start()
        self._first = self._readings()
        self._began = time.monotonic()

    def read(self, proxy: Sequence[Mapping[str, Any]] = ()) -> NowStatus:
        """Return the sample for the status; wait until it is long enough.

        `proxy`: the engines as the proxy sees them.
        """
        time.sleep(max(0.0, self._began + MIN_INTERVAL_S - time.monotonic()))
        second, apart = self._readings(), time.monotonic() - self._began
        try:
            counted: CounterRates = self._counters.read()
        except HostError as error:
            counted = {**_NOTHING, "memory_problem": error.message, "amx_problem": error.message}
        finally:
            self._counters.close()
        cards, problem = gpus.read()
        self.cards = cards or []
        behind = {str(row["name"]): row for row in proxy}
        return {
            "apart_s": round(apart, 2),
            "engines": [
                _build_engine(instance, first, later, apart, behind)
                for instance, first, later in zip(self._instances, self._first, second)
            ],
            "gpus": None if cards is None else [gpus.build_row(card) for card in cards],
            "gpus_problem": problem or None,
            **counted,
        }

    def _readings(self) -> list[str | None]:
        answers = ready.request_metrics(self._ports, _TIMEOUT_S)
        return [None if why else text for why, text in answers]


_NOTHING: CounterRates = {
    "memory_read_bytes_per_s": None,
    "memory_write_bytes_per_s": None,
    "memory_problem": None,
    "amx_busy_share": None,
    "amx_problem": None,
}


def _build_engine(
    instance: Mapping[str, Any],
    first: str | None,
    second: str | None,
    apart_s: float,
    behind: Mapping[str, Mapping[str, Any]],
) -> EngineNow:
    state = metrics.parse_state(second) if second else None
    return {
        "index": instance["index"],
        "unit": unit_names.get_engine_unit(instance),
        "answers": state is not None,
        "running": int(state.running) if state else None,
        "waiting": int(state.waiting) if state else None,
        "cache_used_share": state.cache_use if state else None,
        "requests_at_proxy": (behind.get(f"engine{instance['index']}") or {}).get("requests"),
        **compute_rates(first or "", second or "", apart_s),
    }


def compute_rates(first: str, second: str, apart_s: float) -> TokenRates:
    """Return tokens a second between two readings of an engine's metrics; None where unknown."""
    before, after = metrics.sum_counts(first), metrics.sum_counts(second)
    for answers, prompts in _TOKENS:
        if answers in before and answers in after:
            decode = _compute_rate(before, after, answers, apart_s)
            if _SGLANG_RATE in after:
                decode = max(decode or 0.0, after[_SGLANG_RATE])
            return {
                "decode_tok_s": decode,
                "prefill_tok_s": _compute_rate(before, after, prompts, apart_s),
            }
    return {"decode_tok_s": None, "prefill_tok_s": None}


def _compute_rate(
    before: Mapping[str, float], after: Mapping[str, float], name: str, apart_s: float
) -> float | None:
    """Return how fast a counter grew; None where it was reset meanwhile."""
    grown = after.get(name, 0.0) - before.get(name, 0.0)
    return round(grown / apart_s, 1) if grown >= 0 and apart_s > 0 else None
