"""Signals by one name for both engines, with the expression of each engine's own metrics.

Expressions are PromQL with placeholders: `<sel>` selects hosts, `<by>` the labels that are kept,
`<w>` is the window of a rate. vLLM's names hold for 0.19 to 0.33, sglang's for sglang-kt 0.7.2;
tests compare each with a real /metrics.

Decides: which panels show the metrics (the names of each engine's metrics).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Signal:
    """A signal of an engine, with the expression of either engine's metrics."""

    name: str
    vllm: str
    sglang: str

    @property
    def recorded(self) -> str:
        """The name of the recorded signal, by host and engine."""
        return f"kimi:{self.name}"

    def expression(self) -> str:
        """Return the expression of the signal for either engine of a host."""
        return f"({self.vllm}) or ({self.sglang})" if self.sglang else f"({self.vllm})"


def _sum(metric: str) -> str:
    return f"sum by (<by>) ({metric}{{<sel>}})"


def _make_rate(metric: str, more: str = "") -> str:
    return f"sum by (<by>) (rate({metric}{{<sel>{more}}}[<w>]))"


def make_quantile(share: str, metric: str) -> str:
    """Return the expression of a quantile of a histogram; `metric` has its engine's prefix."""
    return f"histogram_quantile({share}, sum by (<by>, le) (rate({metric}_bucket{{<sel>}}[<w>])))"


def _make_latency_signals(name: str, metric: str) -> tuple[Signal, ...]:
    return tuple(
        Signal(
            f"{name}_{label}_seconds",
            make_quantile(share, f"vllm:{metric}"),
            make_quantile(share, f"sglang:{metric}"),
        )
        for share, label in (("0.5", "median"), ("0.99", "p99"))
    )


# File systems with files; a RAM disk is left out, because it is always as large as its content.
FILE_SYSTEMS = 'fstype!~"tmpfs|ramfs|devtmpfs|overlay|squashfs|iso9660|autofs|nsfs|fuse.*"'
FIRST_TOKEN, BETWEEN_TOKENS = "time_to_first_token_seconds", "inter_token_latency_seconds"
SIGNALS: tuple[Signal, ...] = (
    Signal("requests_running", _sum("vllm:num_requests_running"), _sum("sglang:num_running_reqs")),
    Signal("requests_waiting", _sum("vllm:num_requests_waiting"), _sum("sglang:num_queue_reqs")),
    # sglang counts generation_tokens_total when a request ends; this metric at every step.
    Signal(
        "answer_tokens_per_second",
        _make_rate("vllm:generation_tokens_total"),
        _make_rate("sglang:realtime_tokens_total", ',mode="decode"'),
    ),
    Signal(
        "prompt_tokens_per_second",
        _make_rate("vllm:prompt_tokens_total"),
        _make_rate("sglang:realtime_tokens_total", ',mode=~"prefill_.*"'),
    ),
    # A counter that grows with any work: a long prompt gives no token for minutes, but steps.
    Signal(
        "steps_per_second",
        f"{_make_rate('vllm:iteration_tokens_total_count')} + "
        f"{_make_rate('vllm:generation_tokens_total')}",
        _make_rate("sglang:realtime_tokens_total"),
    ),
    *_make_latency_signals("first_token", FIRST_TOKEN),
    *_make_latency_signals("between_tokens", BETWEEN_TOKENS),
    # Signals of one request.
    Signal(
        "request_tokens_per_second",
        f"{_make_rate(f'vllm:{BETWEEN_TOKENS}_count')} / "
        f"{_make_rate(f'vllm:{BETWEEN_TOKENS}_sum')}",
        f"{_make_rate(f'sglang:{BETWEEN_TOKENS}_count')} / "
        f"{_make_rate(f'sglang:{BETWEEN_TOKENS}_sum')}",
    ),
    Signal(
        "cache_used_ratio",
        "max by (<by>) (vllm:kv_cache_usage_perc{<sel>})",
        "max by (<by>) (sglang:token_usage{<sel>})",
    ),
    Signal(
        "prefix_hit_ratio",
        f"{_make_rate('vllm:prefix_cache_hits_total')} / "
        f"{_make_rate('vllm:prefix_cache_queries_total')}",
        f"{_make_rate('sglang:cached_tokens_total')} / {_make_rate('sglang:prompt_tokens_total')}",
    ),
    # Of the tokens that the GPUs' cache did not have (vLLM alone).
    Signal(
        "host_cache_hit_ratio",
        f"{_make_rate('vllm:external_prefix_cache_hits_total')} / "
        f"{_make_rate('vllm:external_prefix_cache_queries_total')}",
        "",
    ),
    # vLLM preempts, sglang retracts: an answer is interrupted for lack of cache, and recomputed.
    Signal(
        "preemptions_per_second",
        _make_rate("vllm:num_preemptions_total"),
        _make_rate("sglang:num_retracted_requests_total"),
    ),
)
BY_NAME = {signal.name: signal for signal in SIGNALS}


def fill(expression: str, *, by: str, sel: str, window: str) -> str:
    """Return an expression with its placeholders filled in; `sel` and `by` may be empty.

    `<gpu>` becomes the labels of a GPU: for one host with its index, else only the host.
    """
    gpu = "host, gpu" if "engine" in by else "host"
    filled = expression if by else expression.replace("<by>, ", "").replace(" by (<by>) ", "")
    filled = filled.replace("<by>", by).replace("<gpu>", gpu).replace("<w>", window)
    return filled.replace("{<sel>}", f"{{{sel}}}" if sel else "").replace(
        "<sel>,", f"{sel}," if sel else ""
    )
