"""The time in which an engine has to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.service import TimeoutsPlan
    from kimi_prov.planner.decisions import EngineChoice, Weights
    from kimi_prov.planner.settings.parsing import Settings

# Seconds before the engine answers: its own start, then reading the weights at this rate.
_START_S = 900
_LOAD_BYTES_PER_S = 250_000_000
# The least seconds of a unit: one that is killed before it is ready never serves.
_UNIT_START_S = 3600
# After so many seconds vLLM gives up its own start, whatever the unit would wait (core_client.py of
# 0.19.1 to 0.33.0).
_VLLM_GIVES_UP_S = 600


def make_document(settings: Settings, weights: Weights) -> TimeoutsPlan:
    """Return the plan's `timeouts`, in seconds."""
    start = choose_start_timeout(settings, weights)
    return {"start_s": start, "unit_start_s": max(_UNIT_START_S, start)}


def make_environment(choice: EngineChoice, settings: Settings, weights: Weights) -> dict[str, str]:
    """Have vLLM wait for large weights as long as its unit does."""
    if choice.hybrid or weights.size_bytes // _LOAD_BYTES_PER_S <= _VLLM_GIVES_UP_S:
        return {}
    return {"VLLM_ENGINE_READY_TIMEOUT_S": str(make_document(settings, weights)["unit_start_s"])}


def choose_start_timeout(settings: Settings, weights: Weights) -> int:
    """Return the seconds in which the engine must answer; whole minutes by default."""
    if not settings.auto("start_timeout_s"):
        return int(settings.start_timeout_s)
    return -(-(_START_S + weights.size_bytes // _LOAD_BYTES_PER_S) // 60) * 60
