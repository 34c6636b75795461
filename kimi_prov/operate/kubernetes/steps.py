"""Decide what an apply does and in which order, from the folder and the cluster. Pure.

Decides: a rendered folder in a Kubernetes cluster (the order in which it is applied).
Held by: tests/component/commands/kubernetes/test_kubernetes_commands.py,
  tests/unit/operate/test_kubernetes_decisions.py,
  tests/component/operate/test_kubernetes_refusals.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.folder import read_digest

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.folder import Folder

JobStep = Literal["create", "leave", "replace"]


@dataclass(frozen=True)
class Steps:
    """First all but the workload; once the weights are there, the workload; then its `size`.

    So no GPU is held while weights are fetched, the former engine serves meanwhile, and a volume
    that only one node can mount is never needed on two nodes.
    """

    job: JobStep
    first: tuple[Object, ...]
    workload: Object
    size: int | None


def plan_steps(
    folder: Folder, workload: Object | None, job: Object | None, claims: set[str]
) -> Steps:
    """Decide. `workload`, `job` and names of `claims`: what is there now."""
    step = (
        choose_job_step(folder.job, job, has_weights=_has_all_claims(folder, claims))
        if folder.job
        else "leave"
    )
    first = [
        row
        for row in folder.objects
        if row is not folder.workload and not (row is folder.job and step == "leave")
    ]
    return Steps(step, tuple(first), *choose_size(folder, workload))


def choose_size(folder: Folder, there: Object | None) -> tuple[Object, int | None]:
    """Return the workload to send, and its number of replicas; None leaves the number as it is."""
    has = answers.read_path(there, "spec", "replicas")
    if not isinstance(has, int):
        return folder.workload, None
    # Keep the present number: whoever changed it owns that field, until `scale` takes it over.
    row = {**folder.workload, "spec": {**folder.workload["spec"], "replicas": has}}
    # Without a number in the file an autoscaler sets it, which does not start a stopped workload.
    size = folder.replicas if folder.replicas is not None else max(has, 1)
    return row, None if size == has else size


def choose_job_step(desired: Object, there: Object | None, *, has_weights: bool) -> JobStep:
    """Decide about the job that fetches the weights: a job's pod template cannot be changed.

    `has_weights`: the volumes that it fills are there.
    """
    if there is None:
        return "create"
    if (
        answers.is_condition_true(there, "Failed")
        or not has_weights
        or not _is_same(desired, there)
    ):
        return "replace"
    return "leave"


def _is_same(desired: Object, there: Object) -> bool:
    one, other = (answers.read_mapping(row, "spec", "template") for row in (desired, there))
    return read_digest(one) == read_digest(other) and _list_commands(one) == _list_commands(other)


def _list_commands(template: Object) -> list[tuple[object, object, object]]:
    containers = answers.read_rows(template, "spec", "containers")
    return [(row.get("image"), row.get("command"), row.get("args")) for row in containers]


def _has_all_claims(folder: Folder, claims: set[str]) -> bool:
    return {answers.read_name(row) for row in folder.of_kind("PersistentVolumeClaim")} <= claims
