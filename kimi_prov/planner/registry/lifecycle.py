"""Findings about a machine that stops its engines when it is idle."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "rest.engine_sleep",
        title="An idle engine is stopped, and started again; it could sleep instead",
        severities=("info",),
        source="vLLM's sleep mode of level 1, the weights' size, the GPUs' PCIe in the catalogue; "
        "github.com/vllm-project/vllm/pull/54235: a sleep of level 2 answers nonsense afterwards",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "rest.memory",
        title="The RAM disk stays filled while the machine is stopped or asleep",
        severities=("info",),
        source="kimi_stopped_memory, the size of the RAM disk, and whether the host only waits for "
        "the head of its group",
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "rest.sleep_engine",
        title="The engine that is planned cannot sleep",
        severities=("blocker",),
        source="kimi_idle_action: sleep; vLLM's sleep mode copies weights out of GPUs, and "
        "torch's allocator of pinned memory from vLLM 0.32 on",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "rest.sleep_memory",
        title="Host memory does not hold the weights while the engine sleeps",
        severities=("blocker",),
        source="kimi_idle_action: sleep, the weights of all GPUs, what host memory holds beside",
        remedy="memory",
        concerns="purchase",
    ),
    Definition(
        "rest.own_machine",
        title="The machine would switch itself off, and is its own control machine",
        severities=("blocker",),
        source="kimi_idle_action: poweroff, and where kimi-prov runs",
        remedy="setting",
        concerns="deployment",
    ),
)
