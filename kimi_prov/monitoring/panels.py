"""Definitions of the panels, for Grafana's dashboards and for our own consoles.

Decides: which panels show the metrics.
Held by: tests/unit/monitoring/test_names.py, tests/component/monitoring/test_names_shown.py,
  tests/unit/monitoring/test_dashboards.py,
  tests/component/monitoring/test_dashboard_expressions.py,
  tests/component/monitoring/test_console.py, tests/grafana/test_dashboards_drawn.py,
  tests/engines/test_metric_names.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.monitoring.series import BY_NAME, FILE_SYSTEMS


@dataclass(frozen=True)
class Line:
    """Lines of a panel: an expression (as in `series`), and their legend.

    `labels` distinguish the lines of the expression, beside host and engine.
    `dash`: the line is dashed, because it only serves to compare, for example a prediction.
    """

    expression: str
    name: str
    labels: tuple[str, ...] = ()
    dash: bool = False
    # Drawn only in the dashboard of one host.
    alone: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its unit, its lines; `maximum` where the scale has an end.

    Units: `requests`, `tokens/s`, `seconds`, `ratio` (0 to 1), `per second`, `per minute`,
    `watts`, `celsius`,
    `bytes`, `bytes/s`, `days`, `count`.
    """

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    note: str
    maximum: float | None = None
    # The value belongs to a machine, not to one of its engines.
    of_host: bool = False


def _make_signal_line(name: str, called: str) -> Line:
    return Line(BY_NAME[name].expression(), called)


def _make_host_line(
    expression: str, called: str, *labels: str, dash: bool = False, alone: bool = False
) -> Line:
    return Line(expression, called, labels, dash, alone)


def _make_gpu_panel(key: str, title: str, unit: str, expression: str, note: str) -> Panel:
    """Return a panel of each GPU of one host; of many hosts it shows each host's GPUs together."""
    line = _make_host_line(expression, "GPU", "gpu")
    return Panel(key, title, unit, (line,), note, 1 if unit == "ratio" else None, of_host=True)


_EXPECTED = "kimi_expected_decode_tokens_per_second"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Requests",
        (
            Panel(
                "requests",
                "Requests",
                "requests",
                (
                    _make_signal_line("requests_running", "running"),
                    _make_signal_line("requests_waiting", "waiting"),
                ),
                "Waiting for long: more clients than kimi_concurrency, or a cache that is full.",
            ),
            Panel(
                "tokens",
                "Tokens a second",
                "tokens/s",
                (
                    _make_signal_line("answer_tokens_per_second", "answers"),
                    _make_signal_line("prompt_tokens_per_second", "prompts"),
                ),
                "Of all requests together.",
            ),
            Panel(
                "first_token",
                "Time to first token",
                "seconds",
                (
                    _make_signal_line("first_token_median_seconds", "median"),
                    _make_signal_line("first_token_p99_seconds", "99th"),
                ),
                "Queue and prompt together. 99th: one request in a hundred waits longer.",
            ),
            Panel(
                "between_tokens",
                "Time between tokens",
                "seconds",
                (
                    _make_signal_line("between_tokens_median_seconds", "median"),
                    _make_signal_line("between_tokens_p99_seconds", "99th"),
                ),
                "A 99th far above the median: prompts of others come between, or preemptions.",
            ),
            Panel(
                "speed",
                "Speed of a request against prediction",
                "tokens/s",
                (
                    _make_signal_line("request_tokens_per_second", "measured"),
                    _make_host_line(
                        "max by (host) (kimi_measured_decode_tokens_per_second{<sel>})",
                        "last probe or bench",
                        dash=True,
                        alone=True,
                    ),
                    _make_host_line(
                        f'max by (host) ({_EXPECTED}{{<sel>,bound="low"}})', "low", dash=True
                    ),
                    _make_host_line(
                        f'max by (host) ({_EXPECTED}{{<sel>,bound="expected"}})',
                        "expected",
                        dash=True,
                        alone=True,
                    ),
                    _make_host_line(
                        f'max by (host) ({_EXPECTED}{{<sel>,bound="high"}})',
                        "high",
                        dash=True,
                        alone=True,
                    ),
                ),
                "The prediction is for as many requests at once as the plan counts on.",
            ),
            Panel(
                "responses",
                "Answers of the proxy",
                "per second",
                (
                    _make_host_line(
                        "sum by (host, code) (rate(haproxy_frontend_http_responses_total"
                        '{<sel>,proxy="api",code!="other"}[<w>]))',
                        "",
                        "code",
                    ),
                ),
                "4xx: keys and limits. 5xx: the engine does not answer.",
                of_host=True,
            ),
        ),
    ),
    (
        "Cache of conversations",
        (
            Panel(
                "cache",
                "Cache in use",
                "ratio",
                (_make_signal_line("cache_used_ratio", "in use"),),
                "Near the top: new requests wait, or running ones are preempted.",
                maximum=1,
            ),
            Panel(
                "prefix",
                "Prompt tokens found in the cache",
                "ratio",
                (_make_signal_line("prefix_hit_ratio", "found"),),
                "Of those looked up. Long conversations live from it.",
                maximum=1,
            ),
            Panel(
                "host_cache",
                "Prompt tokens found in host memory",
                "ratio",
                (_make_signal_line("host_cache_hit_ratio", "found"),),
                "Of those that the GPUs' cache did not have (kimi_cache_offload).",
                maximum=1,
            ),
            Panel(
                "preemptions",
                "Preemptions",
                "per minute",
                (Line(f"60 * ({BY_NAME['preemptions_per_second'].expression()})", "preempted"),),
                "Answers put back for want of cache, and computed again.",
            ),
        ),
    ),
    (
        "GPUs",
        (
            _make_gpu_panel(
                "gpu_power",
                "Power",
                "watts",
                "sum by (<gpu>) (kimi_gpu_power_watts{<sel>})",
                "Of each GPU; of all of a host where many are shown.",
            ),
            _make_gpu_panel(
                "gpu_temperature",
                "Temperature",
                "celsius",
                "max by (<gpu>) (kimi_gpu_temperature_celsius{<sel>})",
                "The hottest; GPUs slow down by themselves when they are too hot.",
            ),
            _make_gpu_panel(
                "gpu_busy",
                "GPU busy",
                "ratio",
                "avg by (<gpu>) (kimi_gpu_utilisation_ratio{<sel>})",
                "Share of time in which a kernel ran.",
            ),
            _make_gpu_panel(
                "gpu_bandwidth",
                "Memory bandwidth busy",
                "ratio",
                "avg by (<gpu>) (kimi_gpu_memory_busy_ratio{<sel>})",
                "Share of time in which the GPU's memory was read or written.",
            ),
            _make_gpu_panel(
                "gpu_memory",
                "GPU memory in use",
                "bytes",
                "sum by (<gpu>) (kimi_gpu_memory_used_bytes{<sel>})",
                "Weights, cache and graphs: constant while the engine runs.",
            ),
            Panel(
                "gpu_throttled",
                "Throttled",
                "count",
                (
                    _make_host_line(
                        "sum by (host, reason) (kimi_gpu_throttled{<sel>})",
                        "",
                        "reason",
                    ),
                ),
                "GPUs that are slowed down, by reason.",
                of_host=True,
            ),
        ),
    ),
    (
        "Machine",
        (
            Panel(
                "cpu",
                "Processors busy",
                "ratio",
                (
                    _make_host_line(
                        "1 - sum by (host) (rate(node_cpu_seconds_total"
                        '{<sel>,mode=~"idle|iowait"}[<w>]))'
                        ' / count by (host) (node_cpu_seconds_total{<sel>,mode="idle"})',
                        "busy",
                    ),
                ),
                "Of all processors.",
                maximum=1,
                of_host=True,
            ),
            Panel(
                "memory",
                "Memory in use",
                "ratio",
                (
                    _make_host_line(
                        "1 - max by (host) (node_memory_MemAvailable_bytes{<sel>})"
                        " / max by (host) (node_memory_MemTotal_bytes{<sel>})",
                        "in use",
                    ),
                ),
                "RAM disk included.",
                maximum=1,
                of_host=True,
            ),
            Panel(
                "disk",
                "Room on disks",
                "bytes",
                (
                    _make_host_line(
                        "min by (host, mountpoint) "
                        f"(node_filesystem_avail_bytes{{<sel>,{FILE_SYSTEMS}}})",
                        "",
                        "mountpoint",
                    ),
                ),
                "Free, by file system.",
                of_host=True,
            ),
            Panel(
                "network",
                "Network",
                "bytes/s",
                tuple(
                    _make_host_line(
                        f"sum by (host) (rate(node_network_{way}_bytes_total"
                        '{<sel>,device!~"lo|veth.*|docker.*|br-.*"}[<w>]))',
                        called,
                    )
                    for way, called in (("receive", "received"), ("transmit", "sent"))
                ),
                "Of all devices; between hosts of a group it is what limits them.",
                of_host=True,
            ),
            Panel(
                "state",
                "Instances that serve",
                "count",
                (
                    Line("max by (<by>) (kimi_instance_active{<sel>})", "serves"),
                    Line("max by (<by>) (kimi_instance_starting{<sel>})", "starts", dash=True),
                ),
                "1 while it serves, or while it starts.",
            ),
            Panel(
                "certificate",
                "Certificate",
                "days",
                (
                    _make_host_line(
                        "(min by (host) (kimi_certificate_expires_timestamp_seconds{<sel>})"
                        " - time()) / 86400",
                        "left",
                    ),
                ),
                "Days until it ends.",
                of_host=True,
            ),
        ),
    ),
)
PANELS: tuple[Panel, ...] = tuple(panel for _, panels in ROWS for panel in panels)
