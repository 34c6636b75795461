"""The memory budget of the chosen engine, and the plan's sections that show it.

Decides: the memory budget.
Applied by: roles/serve.
Held by: tests/unit/planner/memory/test_gpu.py, tests/unit/planner/memory/test_hybrid.py,
  tests/unit/planner/memory/test_memory_observed.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.planner.decisions import GIB, Workload
from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.memory import cpu, hybrid
from kimi_prov.planner.memory.unit_limit import Use, choose_limit
from kimi_prov.planner.placement import numa
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.engine import ParallelPlan
    from kimi_prov.contract.documents.plan.estimates import MemoryPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings


def list_budgets(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    catalogue: Catalogue,
    findings: Findings,
) -> list[Budget]:
    """List how an engine may share out memory that has experts, or all, in host memory.

    The first is the simplest. On processors they differ by the number of engines, in a hybrid by
    that of the GPUs.
    """
    work = Workload(choice.engine, model, choice.weights_format)
    if choice.hybrid:
        return hybrid.list_budgets(host, settings, catalogue, work)
    routed = expert_backend.count_resident_bytes(catalogue, choice.experts, model)
    hosts = settings.hosts_per_model
    resident = cpu.count_resident_bytes(model, choice.weights_format, routed, hosts)
    resident -= expert_backend.count_saved_bytes(choice.dense, choice.experts, model, hosts)
    slices = expert_backend.measure_slices(
        host, catalogue, choice.experts, model, over_nodes=choice.over_nodes
    )
    least = resident + choice.engine.overhead_bytes + GIB
    counts = [1]
    apart = hosts == 1 and not choice.over_nodes
    if choice.experts == "kt":
        expert_backend.check_instances(settings, findings)
    elif apart and settings.auto("instances"):
        counts = numa.list_copies(host, least, settings.concurrency)
    elif apart:
        counts = [numa.check_copies(host, int(settings.instances), least, findings)]
    return [cpu.make_budget(host, settings, work, resident, slices, count) for count in counts]


def make_document(budget: Budget, host: Host, ram_disk_bytes: int) -> MemoryPlan:
    """Give the plan's `memory`."""
    gpu = budget.gpu
    reserve = sum(part.size_bytes for part in budget.parts if part.kind == "system")
    resident = budget.host_required - reserve
    use = Use(host.memory_bytes, reserve, ram_disk_bytes, resident, budget.instances)
    return {
        "weights_bytes_total": budget.weights_total,
        "weights_bytes_per_gpu": gpu.weights if gpu else None,
        "replicated_bytes_per_gpu": gpu.replicated if gpu else None,
        "gpu_bytes": gpu.memory if gpu else None,
        "gpu_utilization": gpu.utilization if gpu else None,
        "gpu_experts": gpu.experts if gpu else None,
        "kv_bytes_per_token": budget.kv_bytes_per_token,
        "kv_available_bytes_per_gpu": budget.kv_bytes if gpu else None,
        "kv_available_bytes": None if gpu else budget.kv_bytes,
        "kv_tokens_max": budget.kv_tokens,
        "overhead_bytes_per_gpu": gpu.overhead if gpu else None,
        "host_ram_required_bytes": budget.host_required + ram_disk_bytes,
        "host_ram_available_bytes": host.memory_bytes,
        "unit_limit_bytes": choose_limit(use),
        "host_parts": [
            {"kind": part.kind, "name": part.name, "bytes": part.size_bytes}
            for part in budget.parts
        ],
    }


def make_parallel_document(
    budget: Budget, flags: Mapping[str, Any], hosts: int, because: str
) -> ParallelPlan:
    """Make the plan's `parallel`: the ranks of each kind of parallelism, over all `hosts` together.

    Without GPUs each host of a group is one rank of tensor parallelism. `because`: why this layout.
    """
    gpu = budget.gpu
    section: ParallelPlan = {
        "hosts": hosts,
        "tensor": gpu.ranks if gpu else hosts,
        "expert": bool(gpu and flags.get(VLLM.expert_parallel)),
        "decode_context": gpu.decode_context if gpu else 1,
        "pipeline": gpu.pipeline if gpu else 1,
        "data": gpu.data if gpu else 1,
    }
    if because:
        section["reason"] = because
    return section
