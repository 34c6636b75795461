"""Findings about a machine that stops its engines when it is idle."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "rest.engine_sleep",
        title="The engine's own sleep is not used: it is stopped, and started again",
        severities=("info",),
        source="vLLM's sleep mode of level 1, the weights' size, the GPUs' PCIe in the catalogue; "
        "github.com/vllm-project/vllm/pull/54235: a sleep of level 2 answers nonsense afterwards",
        remedy="none",
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
        "rest.own_machine",
        title="The machine would switch itself off, and is its own control machine",
        severities=("blocker",),
        source="kimi_idle_action: poweroff, and where kimi-prov runs",
        remedy="setting",
        concerns="deployment",
    ),
)
