"""The dashboard for Grafana: what of the engine's metrics a person looks at first."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kimi_prov.monitoring import series
from kimi_prov.render.kubernetes import measured

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PER_ROW, _WIDTH, _HEIGHT = 2, 12, 8
# Filled in with the labels of the objects.
_JOB = "<job>"
_SHARES = (("0.5", "half"), ("0.95", "19 of 20"))


def _all(name: str) -> str:
    return measured.signal(name, _JOB, by="")


def _latency(metric: str, share: str) -> str:
    return measured.latency(share, metric, _JOB, by="")


_PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Requests",
        "short",
        ((_all("requests_running"), "running"), (_all("requests_waiting"), "waiting")),
    ),
    (
        "Tokens a second",
        "short",
        (
            (_all("answer_tokens_per_second"), "answers"),
            (_all("prompt_tokens_per_second"), "prompts"),
        ),
    ),
    (
        "Time to the first token",
        "s",
        tuple((_latency(series.FIRST_TOKEN, share), label) for share, label in _SHARES),
    ),
    (
        "Time between tokens",
        "s",
        tuple((_latency(series.BETWEEN_TOKENS, share), label) for share, label in _SHARES),
    ),
    ("Time in the queue", "s", ((_latency("request_queue_time_seconds", "0.95"), "19 of 20"),)),
    ("Cache in use", "percentunit", ((_all("cache_used_ratio"), "of the cache of conversations"),)),
    ("Prompts that the cache had", "percentunit", ((_all("prefix_hit_ratio"), "of their tokens"),)),
    (
        "Requests by their end",
        "short",
        (("sum by (finished_reason) (increase(vllm:request_success_total{<job>}[5m]))", ""),),
    ),
    (
        "Answers that were broken off for want of cache",
        "short",
        ((f"{_all('preemptions_per_second')} * 300", "preemptions"),),
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
    job = selector(name, namespace or "$namespace")
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
                "expr": expression.replace(_JOB, job),
                **({"legendFormat": label} if label else {}),
            }
            for at, (expression, label) in enumerate(rows)
        ],
    }
