"""Each engine's flags for the planner's decisions, and how an operator's values for them are read.

Decides: the command line of an instance, with `kimi_engine_args` over the flags of the plan
  (names of flags).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FRACTION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_MAX_GIB = 1 << 20
COPIES = "num_redundant_experts"


@dataclass(frozen=True)
class FlagNames:
    """An engine's flags for the terms that every engine has; memory is counted with them.

    `requests`: requests at once of one engine; `chunk`: tokens of a prompt in one pass;
    `gpu_share`: the share of a GPU's memory that the engine takes.
    """

    context: str
    requests: str
    chunk: str
    kv_dtype: str
    tensor_parallel: str
    gpu_share: str

    @property
    def sizing(self) -> frozenset[str]:
        """All flags whose values change the memory that is counted."""
        return frozenset(getattr(self, term.name) for term in fields(self))


@dataclass(frozen=True)
class VllmFlags(FlagNames):
    """Flags that only vLLM has: more kinds of parallelism, and a cache in host memory."""

    pipeline_parallel: str
    data_parallel: str
    decode_context_parallel: str
    expert_parallel: str
    expert_balancing: str
    expert_balancing_config: str
    cache_offloading: str
    load_format: str
    sleep: str


@dataclass(frozen=True)
class SglangFlags(FlagNames):
    """Flags that only sglang with kt-kernel has; `cache_tokens`: of all requests together."""

    cache_tokens: str
    gpu_experts: str


@dataclass(frozen=True)
class KtFlags:
    """Flags of kt-kernel's experts in sglang that do not change the memory that is counted.

    `threads`: of all pools together; `prefill_from`: the tokens of a prompt from which it is
    computed on the GPU.
    """

    method: str
    threads: str
    pools: str
    nodes: str
    prefill_from: str
    weights: str


VLLM = VllmFlags(
    context="max-model-len",
    requests="max-num-seqs",
    chunk="max-num-batched-tokens",
    kv_dtype="kv-cache-dtype",
    tensor_parallel="tensor-parallel-size",
    gpu_share="gpu-memory-utilization",
    pipeline_parallel="pipeline-parallel-size",
    data_parallel="data-parallel-size",
    decode_context_parallel="decode-context-parallel-size",
    expert_parallel="enable-expert-parallel",
    expert_balancing="enable-eplb",
    expert_balancing_config="eplb-config",
    cache_offloading="kv-offloading-size",
    load_format="load-format",
    sleep="enable-sleep-mode",
)
SGLANG_KT = SglangFlags(
    context="context-length",
    requests="max-running-requests",
    chunk="chunked-prefill-size",
    kv_dtype="kv-cache-dtype",
    tensor_parallel="tensor-parallel-size",
    gpu_share="mem-fraction-static",
    cache_tokens="max-total-tokens",
    gpu_experts="kt-num-gpu-experts",
)
KT = KtFlags(
    method="kt-method",
    threads="kt-cpuinfer",
    pools="kt-threadpool-count",
    nodes="kt-numa-nodes",
    prefill_from="kt-gpu-prefill-token-threshold",
    weights="kt-weight-path",
)
_BY_ENGINE: Mapping[str, FlagNames] = {"vllm": VLLM, "ktransformers": SGLANG_KT}


def find_flag_names(engine: str) -> FlagNames:
    """Return the flags of an engine of the catalogue: vllm or ktransformers."""
    return _BY_ENGINE[engine]


def find_equivalent(engine: str, flag: str) -> str | None:
    """Return this engine's name for a flag that has another engine's name; else None."""
    own = find_flag_names(engine)
    if flag in own.sizing:
        return None
    for other in _BY_ENGINE.values():
        for term in fields(FlagNames):
            if getattr(other, term.name) == flag:
                return str(getattr(own, term.name))
    return None


def parse_int(value: object, *, least: int = 1) -> int | None:
    """Parse a whole number of at least `least`, also from text; None for other values."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        value = int(value)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int and value >= least else None  # type: ignore[operator,return-value]


def parse_share(value: object) -> float | None:
    """Parse a share above 0 and up to 1, also from text; None for other values."""
    share = _parse_float(value)
    return share if share is not None and 0 < share <= 1 else None


def parse_gib(value: object) -> float | None:
    """Parse a number of GiB above 0, also from text; None for other values."""
    size = _parse_float(value)
    return size if size is not None and 0 < size < _MAX_GIB else None


def _parse_float(value: object) -> float | None:
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        return float(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None  # type: ignore[return-value]


def parse_balancing(value: object) -> Mapping[str, object] | None:
    """Parse EPLB's mapping and its number of redundant experts; None where one is invalid."""
    if not isinstance(value, dict) or COPIES not in value:
        return value if isinstance(value, dict) else None
    copies = parse_int(value[COPIES], least=0)
    return None if copies is None else {**value, COPIES: copies}


class NumberReader(NamedTuple):
    """How the planner reads a flag's value (None for an invalid one), and the `expected` form."""

    read: Callable[[object], object]
    expected: str


_WHOLE_NUMBER = NumberReader(parse_int, "a whole number from 1")
_SHARE = NumberReader(parse_share, "a number above 0, 1 at most")
# Flags that the planner counts with. It refuses a value that it cannot read: the engine would use
# that value, and the planner would count memory with another.
NUMBERS: Mapping[str, NumberReader] = {
    **{
        flag: _WHOLE_NUMBER
        for own in _BY_ENGINE.values()
        for flag in (own.context, own.requests, own.chunk, own.tensor_parallel)
    },
    **{own.gpu_share: _SHARE for own in _BY_ENGINE.values()},
    VLLM.pipeline_parallel: _WHOLE_NUMBER,
    VLLM.data_parallel: _WHOLE_NUMBER,
    VLLM.decode_context_parallel: _WHOLE_NUMBER,
    VLLM.cache_offloading: NumberReader(parse_gib, "a number of GiB above 0"),
    VLLM.expert_balancing_config: NumberReader(
        parse_balancing, f"a mapping, {COPIES} in it a whole number from 0"
    ),
    SGLANG_KT.cache_tokens: _WHOLE_NUMBER,
    SGLANG_KT.gpu_experts: NumberReader(partial(parse_int, least=0), "a whole number from 0"),
    KT.threads: _WHOLE_NUMBER,
    KT.pools: _WHOLE_NUMBER,
}


def parse_kv_dtype(value: object) -> str | None:
    """Translate an engine's `kv-cache-dtype` to the planner's fp8 or bf16; None for None."""
    if value is None:
        return None
    return "fp8" if str(value).startswith("fp8") else "bf16"
