"""Whether an idle engine sleeps: its weights wait in host memory, and the GPUs' memory is free.

vLLM's sleep of level 1 copies the weights of each GPU to pinned host memory, and back at the wake;
the process, its compiled kernels and its CUDA graphs stay. Level 2 drops the weights, and vLLM
answers nonsense afterwards, so it is not used.

Decides: whether an idle engine sleeps with its weights in host memory.
Applied by: roles/serve, roles/idle.
Held by: tests/unit/planner/service/test_engine_sleep.py,
  tests/component/on_host/lifecycle/test_sleeping.py, tests/gpu/test_sleep_served.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import MemoryPart
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

PART = "Weights of an engine that sleeps"
# Its torch is the first here with the option below. On a card 0.33.0 slept and woke; 0.32.0 did so
# on processors alone (tests/engines/test_engine_control.py).
_SINCE = "0.32.0"
# Else torch rounds each pinned block up to a power of two (CachingHostAllocator.h of 2.13).
_PINNED = {"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:1"}


def is_requested(settings: Settings) -> bool:
    """Return whether the inventory has idle engines sleep."""
    return settings.idle_stop is not None and settings.idle_action == "sleep"


def count_copied_bytes(budget: Budget) -> int:
    """Count the bytes of weights that all GPUs together copy to host memory."""
    gpu = budget.gpu
    return gpu.weights * gpu.gpus * budget.instances if gpu else 0


def add_to_budget(
    host: Host, settings: Settings, choice: EngineChoice, budget: Budget, findings: Findings
) -> Budget:
    """Return the budget with the copy of the weights, where the inventory has engines sleep.

    An engine that cannot sleep, or memory that does not hold the copy, is a blocker.
    """
    if not is_requested(settings):
        return budget
    obstacle = _find_obstacle(settings, choice, budget)
    copied = count_copied_bytes(budget)
    if obstacle:
        findings.add(
            "rest.sleep_engine",
            observed=obstacle[0],
            required=obstacle[1],
            fix="set kimi_idle_action: stop",
        )
        return budget
    if budget.host_required + copied > host.memory_bytes:
        findings.add(
            "rest.sleep_memory",
            observed=f"{format_bytes(copied)} of weights beside "
            f"{format_bytes(budget.host_required)}, of {format_bytes(host.memory_bytes)}",
            required="host memory that holds a copy of what the GPUs hold while the engine sleeps",
            fix="set kimi_idle_action: stop, or add memory",
        )
    return replace(budget, parts=(*budget.parts, MemoryPart("overhead", PART, copied)))


def _find_obstacle(
    settings: Settings, choice: EngineChoice, budget: Budget
) -> tuple[str, str] | None:
    """Return what is planned and what a sleep needs instead; None where the engine can sleep."""
    engine = choice.engine
    if engine.name != "vllm" or engine.variant != "cuda" or budget.gpu is None:
        return (
            f"{engine.name} {engine.version}",
            "vLLM on GPUs that hold all weights: other engines have no sleep",
        )
    if parse_version(engine.version) < parse_version(_SINCE):
        return f"vLLM {engine.version}", f"vLLM {_SINCE} or later"
    if settings.engine_args.get(VLLM.load_format) == "ipc_cache":
        return f"{VLLM.load_format}: ipc_cache", "weights that belong to the engine itself"
    return None


def make_flags(settings: Settings) -> dict[str, bool]:
    """Return the engine's flag, without which it refuses to sleep."""
    return {VLLM.sleep: True} if is_requested(settings) else {}


def make_environment(settings: Settings, index: int) -> dict[str, str]:
    """Return the variables of instance `index`: where it takes the order to sleep or to wake."""
    if not is_requested(settings):
        return {}
    return {paths.CONTROL_VARIABLE: paths.build_control_socket(index), **_PINNED}


def report_gain(
    host: Host,
    settings: Settings,
    choice: EngineChoice,
    budget: Budget,
    ram_disk_bytes: int,
    load_s: float | None,
    findings: Findings,
) -> None:
    """Report what sleeping in place of stopping would gain, where the machine stops when idle."""
    rests = settings.idle_stop and settings.idle_action == "stop" and settings.wake != "off"
    if not rests or settings.hosts_per_model > 1 or _find_obstacle(settings, choice, budget):
        return
    copied, held = count_copied_bytes(budget), budget.host_required + ram_disk_bytes
    room = held + copied <= host.memory_bytes
    has = "which it has" if room else "which it has not"
    observed = (
        f"a sleep needs {format_bytes(copied)} of host memory beside {format_bytes(held)}, {has} "
        f"of {format_bytes(host.memory_bytes)}"
    )
    if not room:
        findings.add("rest.engine_sleep", observed=observed, required="memory for both")
        return
    copy_s = copied / (len(host.gpu_bytes) * host.gpu.pcie_gb_s * 1e9) if host.gpu else None
    if copy_s:
        observed += f"; a wake would copy the weights in {format_duration(copy_s)} or more"
    if load_s:
        observed += f"; a start takes about {format_duration(load_s)} by the plan's estimate"
    findings.add(
        "rest.engine_sleep",
        observed=observed,
        required="kimi_idle_action: stop ends the engine, and gives its host memory back",
        fix="set kimi_idle_action: sleep, where the GPUs alone are wanted by others",
    )
