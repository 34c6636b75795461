"""What a machine that serves keeps, where the inventory leaves the choice to the planner.

Decides: what of a serving machine stays as it is.
Applied by: roles/serve.
Held by: tests/unit/planner/selection/test_what_serves_stays.py, tests/lab/test_takeover.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.kimi import ServedFacts
    from kimi_prov.planner.decisions import Budget, EngineChoice
    from kimi_prov.planner.settings.parsing import Settings


def find_served(facts: Facts, settings: Settings, model: Model) -> ServedFacts | None:
    """Return what the machine serves this model by; None where it may be chosen anew."""
    served = facts["kimi"].get("served")
    if settings.choose_anew or served is None or served["model"] != model.name:
        return None
    return served


def find_version(rows: Sequence[Engine], settings: Settings) -> Engine | None:
    """Return the row of the version that is set, or else of the one that serves."""
    version = settings.engine_version
    if settings.served is not None and settings.auto("engine_version"):
        version = settings.served["version"]
        rows = [row for row in rows if row.name == settings.served["engine"]]
    return next((row for row in rows if row.version == version), None)


def select_kept(budgets: Sequence[Budget], settings: Settings) -> list[Budget]:
    """Select the budgets by which the machine serves, and that hold a context that is set.

    They are exactly those where as many requests are asked for, else all of their layout.
    """
    served = settings.served
    if served is None:
        return []
    least = 1 if settings.auto("context") else int(settings.context)
    able = [row for row in budgets if row.kv_tokens_one >= least and _has_layout(row, served)]
    if settings.concurrency != served["concurrency"]:
        return able
    return [row for row in able if _has_sizes(row, served)] or able


def is_kept_outside_gpus(
    choice: EngineChoice, budget: Budget, settings: Settings, nodes: int
) -> bool:
    """Whether the machine, which has so many NUMA nodes, serves by this way, and it still can.

    A way is the backend, the engines, their GPUs, and the nodes of an engine; its cache has to hold
    a context that is set.
    """
    served = settings.served
    if served is None or served["engine"] != choice.engine.name:
        return False
    least = 1 if settings.auto("context") else int(settings.context)
    ranks = budget.gpu.ranks if budget.gpu else settings.hosts_per_model
    same = (budget.instances, ranks) == (served["instances"], served["tensor"])
    # Facts of an older version say neither whose kernel it is nor on how many nodes.
    same = same and served.get("experts") in (None, choice.experts)
    if choice.experts == "native":
        same = same and (served.get("nodes") or 1) == (nodes if choice.over_nodes else 1)
    return same and budget.kv_tokens_one >= least


def _has_layout(budget: Budget, served: ServedFacts) -> bool:
    gpu = budget.gpu
    if gpu is None:
        return False
    ways = (gpu.ranks, gpu.pipeline, gpu.data, gpu.decode_context)
    same = ways == tuple(served[name] for name in ("tensor", "pipeline", "data", "decode_context"))
    return same and (budget.instances, budget.kv_dtype) == (served["instances"], served["kv_dtype"])


def _has_sizes(budget: Budget, served: ServedFacts) -> bool:
    gpu = budget.gpu
    sizes = (gpu.sequences, gpu.utilization) if gpu else ()
    return sizes == (served["requests"], served["gpu_share"])
