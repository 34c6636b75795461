"""Made-up hosts and pods over some hours, as the metrics that a Prometheus would have read of them.

Made with the names and labels that the recordings of tests/data/recordings/metrics have; figures
are invented, in the range of what 8x H200 and a hybrid server do.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_S = 60
BUCKETS = {
    "time_to_first_token_seconds": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    "inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1),
    "request_queue_time_seconds": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20),
}


@dataclass
class _Series:
    """Samples by series, counters summed up."""

    rows: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)
    counted: dict[tuple[str, str], float] = field(default_factory=dict)

    def gauge(self, at: int, name: str, labels: str, value: float) -> None:
        self.rows.setdefault((name, labels), []).append((at, value))

    def count(self, at: int, name: str, labels: str, more: float) -> None:
        key = (name, labels)
        self.counted[key] = self.counted.get(key, 0.0) + more
        self.gauge(at, name, labels, self.counted[key])

    def text(self) -> Iterator[str]:
        """OpenMetrics without heads: the samples of a series together."""
        for (name, labels), samples in sorted(self.rows.items()):
            for at, value in samples:
                yield f"{name}{{{labels}}} {value:.6g} {at}"
        yield "# EOF"


def openmetrics(until: int, hours: float = 3) -> str:
    """Return all of three hosts up to a time in seconds since 1970."""
    made = random.Random(22)  # noqa: S311  (figures, not keys)
    series = _Series()
    for at in range(until - int(hours * 3600), until + 1, STEP_S):
        left = until - at
        day = 0.55 + 0.45 * math.sin(at / 1900)
        own = {"engine": "0", "exported_engine": "0", "model_name": "kimi-k2.5"}
        running = _vllm(series, at, _labels("alpha", "kimi-engine", **own), day, made)
        _answered(series, at, "alpha", running)
        _sglang(series, at, "beta", day, made)
        _machine(series, at, "alpha", 8, day, made, decode=(38, 52, 66))
        _machine(series, at, "beta", 1, day, made, decode=(9, 12.5, 17))
        _machine(series, at, "gamma", 0, 0, made, decode=(4, 6, 9), starts=left < 2400)
        if left < 600:
            series.gauge(at, "kimi_gpu_xid_errors_total", _node("beta", code="31"), 1)
    return "\n".join(series.text()) + "\n"


def pods(until: int, hours: float = 3) -> str:
    """Return all of two pods of vLLM up to a time in seconds since 1970."""
    made = random.Random(22)  # noqa: S311  (figures, not keys)
    series = _Series()
    for at in range(until - int(hours * 3600), until + 1, STEP_S):
        day = 0.55 + 0.45 * math.sin(at / 1900)
        for number in range(2):
            own = {"namespace": "models", "job": "kimi", "pod": f"kimi-{number}"}
            label = _written({**own, "engine": "0", "model_name": "kimi-k2.5"})
            running = _vllm(series, at, label, day, made)
            waited = [made.lognormvariate(-1 + 2 * day, 0.5) for _ in range(running + 1)]
            _histogram(series, at, "vllm:request_queue_time_seconds", label, waited)
            for reason, share in (("stop", 4), ("length", 0.5), ("abort", 0.1)):
                ends = f'{label},finished_reason="{reason}"'
                series.count(at, "vllm:request_success_total", ends, running * share)
    return "\n".join(series.text()) + "\n"


def _written(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{value}"' for key, value in labels.items())


def _labels(host: str, job: str, **more: str) -> str:
    return _written({"host": host, "job": job, **more})


def _node(host: str, **more: str) -> str:
    return _labels(host, "kimi-node", **more)


def _histogram(series: _Series, at: int, name: str, labels: str, values: list[float]) -> None:
    bounds = BUCKETS[name.partition(":")[2]]
    for bound in bounds:
        within = sum(value <= bound for value in values)
        series.count(at, f"{name}_bucket", f'{labels},le="{bound}"', within)
    series.count(at, f"{name}_bucket", f'{labels},le="+Inf"', len(values))
    series.count(at, f"{name}_sum", labels, sum(values))
    series.count(at, f"{name}_count", labels, len(values))


def _vllm(series: _Series, at: int, label: str, day: float, made: random.Random) -> int:
    """Add what an engine tells; the requests that run are returned."""
    running = max(0, round(18 * day + made.uniform(-2, 2)))
    series.gauge(at, "vllm:num_requests_running", label, running)
    series.gauge(at, "vllm:num_requests_waiting", label, max(0, running - 16))
    series.gauge(at, "vllm:kv_cache_usage_perc", label, min(0.99, 0.05 + running * 0.05))
    speed = 62 - running * 1.2
    series.count(at, "vllm:generation_tokens_total", label, running * speed * STEP_S)
    series.count(at, "vllm:prompt_tokens_total", label, running * 900 * made.uniform(0.6, 1.4))
    series.count(at, "vllm:iteration_tokens_total_count", label, speed * STEP_S)
    series.count(at, "vllm:prefix_cache_queries_total", label, running * 900)
    series.count(at, "vllm:prefix_cache_hits_total", label, running * 900 * made.uniform(0.5, 0.7))
    series.count(at, "vllm:external_prefix_cache_queries_total", label, running * 350)
    found = running * 350 * made.uniform(0.1, 0.4)
    series.count(at, "vllm:external_prefix_cache_hits_total", label, found)
    series.count(at, "vllm:num_preemptions_total", label, float(running > 17))
    first = [made.lognormvariate(-0.6, 0.6) for _ in range(running + 1)]
    between = [made.lognormvariate(math.log(1 / speed), 0.25) for _ in range(60)]
    _histogram(series, at, "vllm:time_to_first_token_seconds", label, first)
    _histogram(series, at, "vllm:inter_token_latency_seconds", label, between)
    return running


def _sglang(series: _Series, at: int, host: str, day: float, made: random.Random) -> None:
    label = _labels(host, "kimi-engine", engine="0", engine_type="unified", model_name="kimi-k2.5")
    running = max(0, round(3 * day + made.uniform(-0.7, 0.7)))
    series.gauge(at, "sglang:num_running_reqs", label, running)
    series.gauge(at, "sglang:num_queue_reqs", label, 1 if running > 2 else 0)
    series.gauge(at, "sglang:token_usage", label, 0.1 + running * 0.2)
    series.count(at, "sglang:realtime_tokens_total", f'{label},mode="decode"', running * 11 * 60)
    prefill = f'{label},mode="prefill_compute"'
    series.count(at, "sglang:realtime_tokens_total", prefill, running * 500)
    series.count(at, "sglang:prompt_tokens_total", label, running * 700)
    series.count(at, "sglang:cached_tokens_total", f'{label},cache_source="device"', running * 180)
    series.count(at, "sglang:num_retracted_requests_total", label, 0)
    first = [made.lognormvariate(1.2, 0.5) for _ in range(running + 1)]
    between = [made.lognormvariate(math.log(0.09), 0.2) for _ in range(40)]
    _histogram(series, at, "sglang:time_to_first_token_seconds", label, first)
    _histogram(series, at, "sglang:inter_token_latency_seconds", label, between)
    _answered(series, at, host, running)


def _answered(series: _Series, at: int, host: str, running: float) -> None:
    for code, share in (("2xx", 3), ("4xx", 0.2), ("5xx", 0.0)):
        label = _labels(host, "kimi-proxy", proxy="api", code=code)
        series.count(at, "haproxy_frontend_http_responses_total", label, running * share)


def _machine(
    series: _Series,
    at: int,
    host: str,
    gpus: int,
    day: float,
    made: random.Random,
    *,
    decode: tuple[float, float, float],
    starts: bool = False,
) -> None:
    serves = day > 0
    for job in ("kimi-node", "kimi-proxy"):
        series.gauge(at, "up", _labels(host, job), 1)
    series.gauge(at, "up", _labels(host, "kimi-engine", engine="0"), float(serves))
    info = _node(host, hash="0a1b2c3d", model="kimi-k2.5", engine="vllm", version="0.25.1")
    series.gauge(at, "kimi_plan_info", info, 1)
    series.gauge(at, "kimi_weights_verified", _node(host), 1)
    series.gauge(at, "kimi_ram_disk_planned", _node(host), 0)
    series.gauge(at, "kimi_ram_disk_filled", _node(host), 0)
    ends = at + 86400 * 61.5
    series.gauge(at, "kimi_certificate_expires_timestamp_seconds", _node(host), round(ends, -5))
    one = _node(host, engine="0")
    series.gauge(at, "kimi_instance_active", one, float(serves))
    series.gauge(at, "kimi_instance_starting", one, float(starts))
    for bound, value in zip(("low", "expected", "high"), decode, strict=True):
        label = _node(host, bound=bound)
        series.gauge(at, "kimi_expected_decode_tokens_per_second", label, value)
    if serves:
        series.gauge(at, "kimi_measured_decode_tokens_per_second", _node(host), decode[1] * 0.95)
    series.gauge(at, "kimi_expected_concurrency", _node(host), 16)
    series.gauge(at, "kimi_metrics_written_timestamp_seconds", _node(host), at)
    series.gauge(at, "kimi_clock_synchronised", _node(host), 1)
    for gpu in range(gpus):
        _gpu(series, at, _node(host, gpu=str(gpu)), day, made)
    for cpu in range(2):
        busy = (0.15 + 0.5 * day) * STEP_S
        for mode, seconds in (("idle", STEP_S - busy), ("user", busy)):
            label = _node(host, cpu=str(cpu), mode=mode)
            series.count(at, "node_cpu_seconds_total", label, seconds)
    series.gauge(at, "node_memory_MemTotal_bytes", _node(host), 2.1e12)
    series.gauge(at, "node_memory_MemAvailable_bytes", _node(host), 1.4e12 - 1e11 * day)
    for mount, size in (("/", 9e10), ("/srv", 3.1e12)):
        label = _node(host, mountpoint=mount, fstype="ext4", device="/dev/md0")
        series.gauge(at, "node_filesystem_avail_bytes", label, size)
        series.gauge(at, "node_filesystem_size_bytes", label, size * 3)
    for way in ("receive", "transmit"):
        label = _node(host, device="ens1")
        more = (2e5 + 4e6 * day) * STEP_S
        series.count(at, f"node_network_{way}_bytes_total", label, more)


def _gpu(series: _Series, at: int, label: str, day: float, made: random.Random) -> None:
    series.gauge(at, "kimi_gpu_power_watts", label, 120 + 430 * day + made.uniform(-20, 20))
    series.gauge(at, "kimi_gpu_temperature_celsius", label, 38 + 30 * day + made.uniform(-1, 1))
    series.gauge(at, "kimi_gpu_utilisation_ratio", label, min(1, 0.1 + 0.9 * day))
    series.gauge(at, "kimi_gpu_memory_busy_ratio", label, min(1, 0.05 + 0.6 * day))
    series.gauge(at, "kimi_gpu_memory_used_bytes", label, 1.32e11)
    for reason in ("sw_power_cap", "hw_thermal_slowdown"):
        hot = float(reason == "sw_power_cap" and day > 0.95)
        series.gauge(at, "kimi_gpu_throttled", f'{label},reason="{reason}"', hot)
