"""What an apply does, in which order: decided from the folder and from what is there. Pure.

Decides: a rendered folder in a Kubernetes cluster (the order in which it is applied).
Held by: tests/component/commands/kubernetes/test_kubernetes_commands.py,
  tests/unit/operate/test_kubernetes_decisions.py,
  tests/component/operate/test_kubernetes_refusals.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.folder import digest

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.folder import Folder

JobStep = Literal["create", "leave", "replace"]


@dataclass(frozen=True)
class Steps:
    """First all but the workload; once the weights are there, the workload; then its `size`.

    So no GPU is held while weights are fetched, the engine of before serves on meanwhile, and a
    volume of one node's is never wanted on two.
    """

    job: JobStep
    first: tuple[Object, ...]
    workload: Object
    size: int | None


def steps(folder: Folder, workload: Object | None, job: Object | None, claims: set[str]) -> Steps:
    """Decide. `workload`, `job` and names of `claims`: what is there now."""
    step = job_step(folder.job, job, whole=_all_there(folder, claims)) if folder.job else "leave"
    first = [
        row
        for row in folder.objects
        if row is not folder.workload and not (row is folder.job and step == "leave")
    ]
    return Steps(step, tuple(first), *sized(folder, workload))


def sized(folder: Folder, there: Object | None) -> tuple[Object, int | None]:
    """Return the workload to send, and the number to scale it to: None leaves that as it is."""
    has = answers.at(there, "spec", "replicas")
    if not isinstance(has, int):
        return folder.workload, None
    # As many as there are: who changed their number owns that field, until `scale` takes it.
    row = {**folder.workload, "spec": {**folder.workload["spec"], "replicas": has}}
    # A file without a number leaves it to an autoscaler, which starts nothing that is stopped.
    wanted = folder.replicas if folder.replicas is not None else max(has, 1)
    return row, None if wanted == has else wanted


def job_step(wanted: Object, there: Object | None, *, whole: bool) -> JobStep:
    """Decide about the job that fetches: its pods cannot be changed, and what is done is done.

    `whole`: the volumes that it fills are there.
    """
    if there is None:
        return "create"
    if answers.holds(there, "Failed") or not whole or not _same(wanted, there):
        return "replace"
    return "leave"


def _same(wanted: Object, there: Object) -> bool:
    one, other = (answers.mapping(row, "spec", "template") for row in (wanted, there))
    return digest(one) == digest(other) and _runs(one) == _runs(other)


def _runs(template: Object) -> list[tuple[object, object, object]]:
    containers = answers.rows(template, "spec", "containers")
    return [(row.get("image"), row.get("command"), row.get("args")) for row in containers]


def _all_there(folder: Folder, claims: set[str]) -> bool:
    return {answers.name(row) for row in folder.of_kind("PersistentVolumeClaim")} <= claims
