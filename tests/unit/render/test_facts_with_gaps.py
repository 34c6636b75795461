"""Facts that do not say how many processors a node has: a pod and a job get one at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from golden import h200, planned

from kimi_prov.render.kubernetes import pod

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan


def test_a_pod_gets_a_processor_of_a_node_of_unknown_ones() -> None:
    facts = cast("Facts", h200())
    plan = cast("MachinePlan", planned("dgx-h200"))
    unknown: Facts = {**facts, "cpu": {**facts["cpu"], "threads": None, "cores": None}}
    assert pod.count_threads(unknown) == 1
    assert pod.count_fetch_cpus(plan, unknown) == 1
    assert pod.count_fetch_cpus(plan, facts) > 1
