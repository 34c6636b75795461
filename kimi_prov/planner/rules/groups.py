"""Rules about hosts that serve one model together: are they equal, does the layout fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.gpu_rows import get_gpu_name
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.hosts.groups import SHARED_SETTINGS
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.planner.hosts.groups import Member

_EXECUTORS = ("distributed-executor-backend", "data-parallel-backend")


@register_rule("group.engine")
def _check_engine(context: PlanContext) -> Iterator[RuleResult]:
    if context.group is None:
        return
    by_kt = context.choice.experts == "kt"
    if by_kt or context.choice.engine.name != "vllm":
        yield RuleResult(
            names={"engine": "kt-kernel" if by_kt else "KTransformers"},
            observed=f"kimi_hosts_per_model: {context.settings.hosts_per_model}",
            required="vLLM with all weights in the memory that it computes from",
            fix="set kimi_experts to vllm, or kimi_hosts_per_model to 1"
            if by_kt
            else "use hosts whose GPUs together hold the weights, or set kimi_hosts_per_model to 1",
        )


@register_rule("group.ray")
def _check_ray(context: PlanContext) -> Iterator[RuleResult]:
    for flag in _EXECUTORS:
        if context.group is not None and context.settings.engine_args.get(flag) == "ray":
            yield RuleResult(
                observed=f"kimi_engine_args: {flag}: ray",
                required="the engine's own way over several hosts",
                fix=f"remove {flag} from kimi_engine_args",
            )


@register_rule("group.layout")
def _check_layout(context: PlanContext) -> Iterator[RuleResult]:
    gpu, total = context.budget.gpu, context.gpu_count
    if context.group is None or gpu is None or gpu.gpus == total:
        return
    sizes = {"tensor": gpu.ranks, "pipeline": gpu.pipeline, "data": gpu.data}
    yield RuleResult(
        observed=" x ".join(f"{name} {size}" for name, size in sizes.items())
        + f" = {gpu.gpus} ranks, {total} GPUs",
        required="as many ranks as the hosts have GPUs together",
        fix="remove the parallel sizes from kimi_engine_args, or name those whose product is "
        f"{total}",
    )


@register_rule("group.settings")
def _check_settings(context: PlanContext) -> Iterator[RuleResult]:
    group = context.group
    if group is None:
        return
    for name in SHARED_SETTINGS:
        value = group.planned.shared.get(name)
        others = [member for member in group.peers if member.shared.get(name) != value]
        if others:
            shown = {member.name: member.shared.get(name) for member in (group.planned, *others)}
            yield RuleResult(
                observed="; ".join(
                    f"{host}: {json.dumps(setting, default=str)}" for host, setting in shown.items()
                ),
                required=f"one value of kimi_{name} on {', '.join(m.name for m in group.members)}",
                fix=f"set kimi_{name} for the whole group, not for one host",
            )


# The compared facts, the severity of a difference, and the fix.
_COMPARED_FACTS: tuple[tuple[str, str, Callable[[Member], Any], str], ...] = (
    (
        "GPUs",
        "blocker",
        lambda m: [str(get_gpu_name(g)) for g in m.host.facts["gpus"]],
        "use hosts with the same GPUs",
    ),
    (
        "architecture",
        "blocker",
        lambda m: m.host.system.arch,
        "use hosts of one architecture",
    ),
    (
        "NVIDIA driver",
        "blocker",
        lambda m: m.host.nvidia.get("driver_loaded"),
        "set kimi_nvidia_driver_version: apply brings all hosts to it",
    ),
    (
        "NUMA nodes",
        "warning",
        lambda m: len(m.host.nodes),
        "set the firmware alike (SNC, NPS)",
    ),
    (
        "processor",
        "warning",
        lambda m: m.host.cpu_model,
        "use equal hosts: the slowest is waited for at each layer",
    ),
    (
        "memory",
        "warning",
        lambda m: format_bytes(m.host.memory_bytes),
        "use equal hosts: the least memory counts for all",
    ),
    (
        "operating system",
        "blocker",
        lambda m: (m.host.system.id, m.host.system.version),
        "bring the hosts to one version: the engine's environment has to be the same on each",
    ),
)


@register_rule("group.unlike")
def _check_unlike_hosts(context: PlanContext) -> Iterator[RuleResult]:
    group = context.group
    if group is None:
        return
    driver_changes = context.plan["driver"]["action"] != "none"
    for name, severity, read, fix in _COMPARED_FACTS:
        if name == "NVIDIA driver" and driver_changes:
            continue
        seen = {member.name: read(member) for member in group.members}
        if len({json.dumps(value) for value in seen.values()}) > 1:
            yield RuleResult(
                severity="blocker" if severity == "blocker" else "warning",
                observed=f"{name}: "
                + "; ".join(f"{host}: {_format_value(value)}" for host, value in seen.items()),
                required="the same on every host of the group",
                fix=fix,
            )


def _format_value(value: Any) -> str:  # noqa: ANN401 - whatever is compared
    if isinstance(value, (list, tuple)):
        return " ".join(dict.fromkeys(str(part) for part in value)) + (
            f" ({len(value)})" if isinstance(value, list) else ""
        )
    return str(value) if value is not None else "unknown"
