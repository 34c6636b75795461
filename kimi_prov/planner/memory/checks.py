"""Checks that weights, cache and overhead fit host memory and the GPUs, and says what would fit.

Decides: the memory budget (what does not fit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import GIB
from kimi_prov.planner.memory.context import CONTEXT_STEP
from kimi_prov.planner.settings.flag_names import VLLM, parse_int

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.flag_names import FlagNames
    from kimi_prov.planner.settings.parsing import Settings


_TELL = (
    "name the memory in the spec sheet, add /proc/meminfo or the output of free to the recording, "
    "or probe the machine"
)


def check_memory(
    host: Host,
    settings: Settings,
    model: Model,
    budget: Budget,
    names: FlagNames,
    findings: Findings,
) -> None:
    """Report what does not fit: host memory, each GPU's memory, the context."""
    _check_host(host, budget, findings)
    _check_gpu(model, budget, findings)
    _check_context(settings, model, budget, names, findings)


def _check_host(host: Host, budget: Budget, findings: Findings) -> None:
    if not host.memory_bytes and budget.host_weights:
        findings.add(
            "memory.not_told",
            severity="blocker",
            observed="unknown",
            required=format_bytes(budget.host_required),
            fix=_TELL,
        )
    elif not host.memory_bytes:
        findings.add(
            "memory.host",
            severity="warning",
            observed="unknown",
            required=format_bytes(budget.host_required),
            fix=_TELL,
        )
    elif budget.host_required > host.memory_bytes:
        findings.add(
            "memory.host",
            severity="blocker",
            observed=format_bytes(host.memory_bytes),
            required=format_bytes(budget.host_required),
            fix="use a machine with more memory, a smaller model, or a smaller kimi_context",
        )
    else:
        findings.add(
            "memory.host",
            severity="pass",
            observed=format_bytes(host.memory_bytes),
            required=format_bytes(budget.host_required),
        )


def _check_gpu(model: Model, budget: Budget, findings: Findings) -> None:
    gpu = budget.gpu
    if gpu is None:
        return
    usable = int(gpu.memory * gpu.utilization)
    need = gpu.weights + gpu.overhead
    shown = (
        f"{format_bytes(gpu.weights)} of weights and {format_bytes(gpu.overhead)} of working "
        f"memory on each of {gpu.ranks} GPU(s)"
    )
    if budget.kv_bytes <= 0:
        findings.add(
            "gpu.memory",
            severity="blocker",
            names={"model": model.name},
            observed=f"{format_bytes(usable)} usable of {format_bytes(gpu.memory)} on each "
            f"(the engine would say `Available KV cache memory: {budget.kv_bytes / GIB:.2f} GiB`)",
            required=f"more than {format_bytes(need)}: {shown}",
            fix="use more or larger GPUs"
            + (
                ", or kimi_engine: ktransformers, which keeps experts in host memory"
                if model.versions("ktransformers") and gpu.experts is None
                else ""
            ),
        )
    else:
        findings.add(
            "gpu.memory",
            severity="pass",
            observed=f"{format_bytes(usable)} usable on each, {format_bytes(budget.kv_bytes)} of "
            "it for the cache",
            required=shown,
        )


def _check_context(
    settings: Settings, model: Model, budget: Budget, names: FlagNames, findings: Findings
) -> None:
    flag = names.context if parse_int(settings.engine_args.get(names.context)) else None
    setting = f"{flag} in kimi_engine_args" if flag else "kimi_context"
    if budget.context > model.context:
        findings.add(
            "context.model",
            names={"model": model.name},
            observed=f"kimi_engine_args: {flag}: {budget.context}"
            if flag
            else f"kimi_context: {budget.context}",
            required=f"at most {model.context} tokens",
            fix=f"remove {flag} from kimi_engine_args"
            if flag
            else f"set kimi_context to {model.context} or less, or to auto",
            source=model.source,
        )
    if budget.kv_tokens_one < budget.context:
        findings.add(
            "context.memory",
            observed=f"room for {budget.kv_tokens_one} tokens",
            required=f"{budget.context} tokens",
            fix=_describe_shorter_context(model, budget, setting),
        )
    elif budget.kv_tokens * budget.instances < budget.context * settings.concurrency:
        findings.add(
            "context.concurrency",
            observed=f"cache for {budget.kv_tokens * budget.instances} tokens",
            required=f"{settings.concurrency} x {budget.context} tokens for all at once",
        )


def _describe_shorter_context(model: Model, budget: Budget, setting: str) -> str:
    """Say which context fits, and which changes make room for the one that `setting` sets."""
    if budget.kv_tokens_one < CONTEXT_STEP:
        return "use a machine with more memory, or more or larger GPUs"
    fixes = [f"set {setting} to {budget.kv_tokens_one // CONTEXT_STEP * CONTEXT_STEP} or less"]
    gpu = budget.gpu
    if gpu is not None and gpu.experts is None:
        if budget.kv_dtype == "bf16" and 2 * budget.kv_tokens_one >= budget.context:
            fixes.append(f"kimi_kv_dtype to fp8 (room for {2 * budget.kv_tokens_one} tokens)")
        if gpu.decode_context == 1 and gpu.ranks * budget.kv_tokens_one >= budget.context:
            fixes.append(f"{VLLM.decode_context_parallel} {gpu.ranks} in kimi_engine_args")
        if model.versions("ktransformers"):
            fixes.append("kimi_engine to ktransformers (experts in host memory, slower)")
    return ", or ".join(fixes)
