"""Signals from vLLM's metrics of a model in a cluster, with a cluster's labels."""

from __future__ import annotations

from kimi_prov.monitoring import series

# Labels of one pod: the same name in two namespaces is two pods.
POD = "namespace, job, pod"
_WINDOW = "5m"


def make_signal(name: str, selector: str, *, by: str = POD, window: str = _WINDOW) -> str:
    """Return the expression of a signal of vLLM; `by`: empty for all pods together."""
    return series.fill(series.BY_NAME[name].vllm, by=by, sel=selector, window=window)


def make_latency(
    share: str, metric: str, selector: str, *, by: str = POD, window: str = _WINDOW
) -> str:
    """Return the expression of a share of one of vLLM's histograms, named without prefix."""
    expression = series.make_quantile(share, f"vllm:{metric}")
    return series.fill(expression, by=by, sel=selector, window=window)
