"""Status: the machine's present activity."""

from __future__ import annotations

from typing import TypedDict


class CounterRates(TypedDict):
    """Values of the processor's counters; a missing one is null, with the reason."""

    memory_read_bytes_per_s: float | None
    memory_write_bytes_per_s: float | None
    memory_problem: str | None
    amx_busy_share: float | None
    """Of the cycles of all cores."""
    amx_problem: str | None


class NowStatus(CounterRates):
    """A sample of a second or two; a missing value is null, with the reason."""

    apart_s: float
    """Seconds between the two readings of the engines' counters."""
    engines: list[EngineNow]
    gpus: list[GpuNow] | None
    gpus_problem: str | None


class TokenRates(TypedDict):
    """Tokens a second; null where the engine does not report them."""

    decode_tok_s: float | None
    """Tokens of answers."""
    prefill_tok_s: float | None
    """Tokens of prompts."""


class EngineNow(TokenRates):
    """The activity of an engine."""

    index: int
    unit: str
    answers: bool
    """Whether its metrics could be read."""
    running: int | None
    waiting: int | None
    cache_used_share: float | None
    requests_at_proxy: int | None


class GpuNow(TypedDict):
    """The activity of a GPU."""

    index: int | None
    name: str
    busy_share: float | None
    memory_busy_share: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    memory_temperature_c: float | None
    clock_mhz: float | None
    clock_max_mhz: float | None
    ecc_uncorrected: int | None
    """Errors since the driver was loaded."""
    throttled: list[str] | None
    """What slows it down now."""
