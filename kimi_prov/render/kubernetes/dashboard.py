"""The dashboard for Grafana: what of the engine's metrics a person looks at first."""

from __future__ import annotations

import json
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PER_ROW, _WIDTH, _HEIGHT = 2, 12, 8
# The label `job` is the objects' name: the ServiceMonitor takes it from the Service.
_JOB = '{{job="{name}"}}'
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


def document(name: str) -> str:
    """Return the dashboard of the objects of this name as JSON."""
    content = {
        "title": f"Kimi: {name}",
        "uid": f"kimi-prov-{name}"[:40],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, name) for number in range(len(_PANELS))],
    }
    return json.dumps(content, indent=1)


def _panel(number: int, name: str) -> dict[str, Any]:
    title, unit, rows = _PANELS[number]
    job = _JOB.format(name=name)
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
