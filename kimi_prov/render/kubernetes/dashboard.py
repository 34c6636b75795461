"""The dashboard for Grafana: what of the engine's metrics a person looks at first."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PER_ROW, _WIDTH, _HEIGHT = 2, 12, 8
_PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Requests",
        "short",
        (
            ("sum(vllm:num_requests_running{job})", "running"),
            ("sum(vllm:num_requests_waiting{job})", "waiting"),
        ),
    ),
    (
        "Tokens a second",
        "short",
        (
            ("sum(rate(vllm:generation_tokens_total{job}[5m]))", "answers"),
            ("sum(rate(vllm:prompt_tokens_total{job}[5m]))", "prompts"),
        ),
    ),
    (
        "Time to the first token",
        "s",
        tuple(
            (
                (
                    f"histogram_quantile({share}, "
                    "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{job}[5m])))"
                ),
                label,
            )
            for share, label in (("0.5", "half"), ("0.95", "19 of 20"))
        ),
    ),
    (
        "Time between tokens",
        "s",
        tuple(
            (
                (
                    f"histogram_quantile({share}, "
                    "sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{job}[5m])))"
                ),
                label,
            )
            for share, label in (("0.5", "half"), ("0.95", "19 of 20"))
        ),
    ),
    (
        "Time in the queue",
        "s",
        (
            (
                (
                    "histogram_quantile(0.95, "
                    "sum by (le) (rate(vllm:request_queue_time_seconds_bucket{job}[5m])))"
                ),
                "19 of 20",
            ),
        ),
    ),
    (
        "Cache in use",
        "percentunit",
        (("max(vllm:kv_cache_usage_perc{job})", "of the cache of conversations"),),
    ),
    (
        "Prompts that the cache had",
        "percentunit",
        (
            (
                (
                    "sum(rate(vllm:prefix_cache_hits_total{job}[5m])) / "
                    "sum(rate(vllm:prefix_cache_queries_total{job}[5m]))"
                ),
                "of their tokens",
            ),
        ),
    ),
    (
        "Requests by their end",
        "short",
        (("sum by (finished_reason) (increase(vllm:request_success_total{job}[5m]))", ""),),
    ),
    (
        "Answers that were broken off for want of cache",
        "short",
        (("sum(increase(vllm:num_preemptions_total{job}[5m]))", "preemptions"),),
    ),
)


def selector(name: str, namespace: str | None) -> str:
    """Return the labels of the metrics of these objects, as PromQL has them between braces.

    `job` is the objects' name: the ServiceMonitor takes it from the Service.
    """
    return f'job="{name}"' + (f',namespace="{namespace}"' if namespace else "")


def document(name: str, namespace: str | None) -> str:
    """Return the dashboard of the objects of this name as JSON.

    Without a namespace whoever looks at it chooses one.
    """
    job = f"{{{selector(name, namespace or '$namespace')}}}"
    whose = f"{namespace}/{name}" if namespace else name
    variables = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    if not namespace:
        variables.append(_namespaces(name))
    content = {
        "title": f"Kimi: {whose}",
        # Grafana takes 40 signs; two of one name in two namespaces are two.
        "uid": f"kimi-prov-{hashlib.sha256(whose.encode()).hexdigest()[:12]}",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, job) for number in range(len(_PANELS))],
    }
    return json.dumps(content, indent=1)


def _namespaces(name: str) -> dict[str, Any]:
    metric = f"vllm:num_requests_running{{{selector(name, None)}}}"
    return {
        "name": "namespace",
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({metric}, namespace)",
        # At each look.
        "refresh": 1,
    }


def _panel(number: int, job: str) -> dict[str, Any]:
    title, unit, rows = _PANELS[number]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _PER_ROW * _WIDTH,
            "y": number // _PER_ROW * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression.replace("{job}", job),
                **({"legendFormat": label} if label else {}),
            }
            for at, (expression, label) in enumerate(rows)
        ],
    }
