"""The dashboard for Grafana: the engine's metrics that a person looks at first."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kimi_prov.monitoring import grafana, series
from kimi_prov.render.kubernetes import measured

_PER_ROW, _WIDTH, _HEIGHT = 2, 12, 8
# Filled in with the labels of the objects.
_JOB = "<job>"
_SHARES = (("0.5", "half"), ("0.95", "19 of 20"))


@dataclass(frozen=True)
class _Panel:
    """A panel of all pods together; `unit` and `note` as of `monitoring.panels`."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    note: str
    maximum: float | None = None


def _make_sum(name: str) -> str:
    return measured.make_signal(name, _JOB, by="")


def _make_latency(metric: str, share: str) -> str:
    return measured.make_latency(share, metric, _JOB, by="")


_PANELS = (
    _Panel(
        "Requests",
        "requests",
        ((_make_sum("requests_running"), "running"), (_make_sum("requests_waiting"), "waiting")),
        "Waiting for long: more clients than kimi_concurrency, or a cache that is full.",
    ),
    _Panel(
        "Tokens a second",
        "tokens/s",
        (
            (_make_sum("answer_tokens_per_second"), "answers"),
            (_make_sum("prompt_tokens_per_second"), "prompts"),
        ),
        "Of all requests together.",
    ),
    _Panel(
        "Time to the first token",
        "seconds",
        tuple((_make_latency(series.FIRST_TOKEN, share), label) for share, label in _SHARES),
        "With the time in the queue and the reading of the prompt.",
    ),
    _Panel(
        "Time between tokens",
        "seconds",
        tuple((_make_latency(series.BETWEEN_TOKENS, share), label) for share, label in _SHARES),
        "How fast one answer comes.",
    ),
    _Panel(
        "Time in the queue",
        "seconds",
        ((_make_latency("request_queue_time_seconds", "0.95"), "19 of 20"),),
        "Before the engine begins with a request.",
    ),
    _Panel(
        "Cache in use",
        "ratio",
        ((_make_sum("cache_used_ratio"), "of the cache of conversations"),),
        "Full: requests wait, and answers are broken off and begun again.",
        1,
    ),
    _Panel(
        "Prompts that the cache had",
        "ratio",
        ((_make_sum("prefix_hit_ratio"), "of their tokens"),),
        "What the cache had of a prompt is not read again.",
        1,
    ),
    _Panel(
        "Requests by their end",
        "requests",
        (
            (
                "sum by (finished_reason) (increase(vllm:request_success_total{<job>}[5m]))",
                "{{finished_reason}}",
            ),
        ),
        "Of the last 5 minutes. length: max_tokens was reached; abort: the client left.",
    ),
    _Panel(
        "Answers that were broken off for want of cache",
        "count",
        ((f"{_make_sum('preemptions_per_second')} * 300", "preemptions"),),
        "Of the last 5 minutes; each is computed again from its beginning.",
    ),
)


def make_selector(name: str, namespace: str | None) -> str:
    """Return the labels of the metrics of these objects, as PromQL has them between braces.

    `job` is the objects' name: the ServiceMonitor takes it from the Service.
    """
    return f'job="{name}"' + (f',namespace="{namespace}"' if namespace else "")


def make_document(name: str, namespace: str | None) -> str:
    """Return the dashboard of the objects of this name as JSON.

    Without a namespace the viewer chooses one.
    """
    job = make_selector(name, namespace or "$namespace")
    whose = f"{namespace}/{name}" if namespace else name
    chosen = []
    if not namespace:
        metric = f"vllm:num_requests_running{{{make_selector(name, None)}}}"
        query = f"label_values({metric}, namespace)"
        chosen.append(grafana.make_variable("namespace", "Namespace", query))
    panels = []
    for index, panel in enumerate(_PANELS):
        grid = {"x": index % _PER_ROW * _WIDTH, "y": index // _PER_ROW * _HEIGHT}
        lines = [(expression.replace(_JOB, job), called) for expression, called in panel.lines]
        panels.append(
            grafana.make_timeseries(
                index + 1,
                panel.title,
                panel.unit,
                lines,
                grid | {"w": _WIDTH, "h": _HEIGHT},
                note=panel.note,
                maximum=panel.maximum,
            )
        )
    # Grafana allows 40 characters; the digest also holds the namespace.
    uid = f"kimi-prov-{hashlib.sha256(whose.encode()).hexdigest()[:12]}"
    return grafana.make_document(uid, f"Kimi: {whose}", chosen, panels)
