"""What the cache in host memory gave back, by the engines' own counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.engine import metrics, ready

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.usage import HostCacheUse

# Of vLLM (v1/metrics/loggers.py of 0.25.1, 0.32.0 and 0.33.0): prompt tokens that the GPUs' cache
# did not have and that were looked up in host memory, and those found there.
QUERIED = "vllm:external_prefix_cache_queries_total"
FOUND = "vllm:external_prefix_cache_hits_total"
FLAG = "--kv-offloading-size"
_TIMEOUT_S = 10.0


def measure_use(plan: Plan) -> HostCacheUse | None:
    """Sum the counters of all engines since their starts.

    None where no cache in host memory is served, or no engine answers.
    """
    rows = plan.get("instances") or ()
    ports = [port for row in rows if FLAG in row["argv"] and (port := row.get("port"))]
    answers = ready.request_metrics(ports, _TIMEOUT_S)
    counts = [metrics.sum_counts(text) for refusal, text in answers if refusal is None]
    if not counts:
        return None
    return {
        "queried_tokens": round(sum(one.get(QUERIED, 0.0) for one in counts)),
        "found_tokens": round(sum(one.get(FOUND, 0.0) for one in counts)),
    }
