"""What is measured, by one name for both engines, and how each engine's own metrics give it.

Expressions are PromQL with words to fill in: `<sel>` is what selects hosts, `<by>` the labels that
are kept, `<w>` the window of a rate. vLLM's names hold for 0.19 to 0.33, sglang's for sglang-kt
0.7.2; tests hold each against a real /metrics.

Decides: which panels show the metrics (the names of each engine's metrics).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Signal:
    """One thing that an engine tells, as the metrics of either engine give it."""

    name: str
    vllm: str
    sglang: str

    @property
    def recorded(self) -> str:
        """The name under which the rules keep it, by host and engine."""
        return f"kimi:{self.name}"

    def expression(self) -> str:
        """Return the expression that gives it for whichever engine a host runs."""
        return f"({self.vllm}) or ({self.sglang})"


def _sum(metric: str) -> str:
    return f"sum by (<by>) ({metric}{{<sel>}})"


def _make_rate(metric: str, more: str = "") -> str:
    return f"sum by (<by>) (rate({metric}{{<sel>{more}}}[<w>]))"


def make_quantile(share: str, metric: str) -> str:
    """Return the expression of a share of a histogram, `metric` with its engine's prefix."""
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


# What holds files; a RAM disk is as large as what lies in it.
FILE_SYSTEMS = 'fstype!~"tmpfs|ramfs|devtmpfs|overlay|squashfs|iso9660|autofs|nsfs|fuse.*"'
FIRST_TOKEN, BETWEEN_TOKENS = "time_to_first_token_seconds", "inter_token_latency_seconds"
SIGNALS: tuple[Signal, ...] = (
    Signal("requests_running", _sum("vllm:num_requests_running"), _sum("sglang:num_running_reqs")),
    Signal("requests_waiting", _sum("vllm:num_requests_waiting"), _sum("sglang:num_queue_reqs")),
    # sglang counts generation_tokens_total when a request ends; this one at every step.
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
    # Whatever moves when anything is computed: a long prompt gives no token for minutes, but steps.
    Signal(
        "steps_per_second",
        f"{_make_rate('vllm:iteration_tokens_total_count')} + "
        f"{_make_rate('vllm:generation_tokens_total')}",
        _make_rate("sglang:realtime_tokens_total"),
    ),
    *_make_latency_signals("first_token", FIRST_TOKEN),
    *_make_latency_signals("between_tokens", BETWEEN_TOKENS),
    # Of one request.
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
    # vLLM preempts, sglang retracts: an answer is put back for want of cache and computed again.
    Signal(
        "preemptions_per_second",
        _make_rate("vllm:num_preemptions_total"),
        _make_rate("sglang:num_retracted_requests_total"),
    ),
)
BY_NAME = {signal.name: signal for signal in SIGNALS}


def fill(expression: str, *, by: str, sel: str, window: str) -> str:
    """Return an expression with its words filled in; `sel` may be empty, and `by` for all in one.

    `<gpu>` becomes the labels that tell GPUs apart: those of one host alone, where engines are.
    """
    gpu = "host, gpu" if "engine" in by else "host"
    filled = expression if by else expression.replace("<by>, ", "").replace(" by (<by>) ", "")
    filled = filled.replace("<by>", by).replace("<gpu>", gpu).replace("<w>", window)
    return filled.replace("{<sel>}", f"{{{sel}}}" if sel else "").replace(
        "<sel>,", f"{sel}," if sel else ""
    )
