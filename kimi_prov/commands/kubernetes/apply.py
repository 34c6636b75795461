"""`kimi-prov apply`, `stop` and `start` of a folder that `render kubernetes` made."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.commands.kubernetes.follow import follow
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes import answers, changes, diagnosis, observe, requirements
from kimi_prov.operate.kubernetes.folder import Folder, format_manifest, format_name
from kimi_prov.operate.kubernetes.kubectl import MANAGER
from kimi_prov.operate.kubernetes.steps import choose_size, plan_steps
from kimi_prov.runner import locks
from kimi_prov.runner.outcome import HostFinding
from kimi_prov.show.output import say, show
from kimi_prov.show.text import kubernetes, run_summary
from kimi_prov.user_dirs import find_state_home

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.diagnosis import Baseline
    from kimi_prov.operate.kubernetes.kubectl import Kubectl, Target
    from kimi_prov.operate.kubernetes.steps import Steps
    from kimi_prov.show.output import Output

_CONFLICT = re.compile(r"Apply failed with \d+ conflict")
_IMMUTABLE = re.compile(
    r"field is immutable|updates to \w+ spec for fields other than"
    r"|is forbidden: (?:only dynamically provisioned|field can not be less)"
)


def run(path: Path, target: Target, *, check: bool, diff: bool) -> ExitCode:
    """Bring the cluster to the folder's state; print the endpoint on standard output."""
    folder = _read(path, target)
    say(f"{clean_text.clean_line(folder.kubectl.where)}: {clean_text.clean_line(folder.name)}")
    cluster = requirements.observe_cluster(folder)
    found = requirements.check_requirements(folder, cluster)
    if told := run_summary.format_findings([HostFinding(folder.name, dict(row)) for row in found]):
        say(told)
    if any(row["severity"] == "blocker" for row in found):
        say("nothing was changed")
        return ExitCode.BLOCKED
    before = observe.take_snapshot(folder)
    plan = plan_steps(
        folder, before.workload, before.job, {answers.read_name(r) for r in before.claims}
    )
    if check:
        show(_format_preview(folder, plan, diff=diff))
        return ExitCode.OK
    with locks.hold_lock(path, "apply", find_state_home()):
        show(_format_preview(folder, plan, diff=diff))
        _apply(folder, plan)
    if folder.replicas == 0:
        say(f"{clean_text.clean_line(folder.name)} is stopped: the folder says replicas: 0")
    else:
        show(_format_served(folder))
    return ExitCode.OK


def _read(path: Path, target: Target) -> Folder:
    """Read a folder and its plan before anything is sent."""
    folder = Folder.read(path, target)
    _ = folder.plan
    return folder


def _format_preview(folder: Folder, plan: Steps, *, diff: bool) -> str:
    """Return the changes by the server's dry run."""
    fresh = [row for row in plan.first if row is not folder.job or plan.job == "create"]
    rows = [*fresh, plan.workload]
    kubectl = folder.kubectl
    before = kubectl.items("get", "--ignore-not-found", "-f", "-", content=format_manifest(rows))
    found = changes.compare_objects(before, _send(kubectl, rows, "--dry-run=server"))
    told: list[tuple[str, str, tuple[str, ...]]] = [
        (row.name, row.verdict, row.values) for row in found
    ]
    if folder.job is not None and plan.job == "replace":
        told.append((format_name(folder.job), "replaced", ()))
    if plan.size is not None:
        there = answers.read_int(plan.workload, "spec", "replicas")
        told.append((folder.resource, "scaled", (f"spec.replicas: {there} -> {plan.size}",)))
    return kubernetes.format_changes(told, diff=diff)


def _send(kubectl: Kubectl, rows: Iterable[Object], *options: str) -> list[Object]:
    """Apply objects on the server's side; return the resulting objects."""
    words = ("apply", "--server-side", f"--field-manager={MANAGER}", *options, "-f", "-")
    try:
        return kubectl.items(*words, content=format_manifest(rows))
    except UserError as error:
        if _CONFLICT.search(error.message):
            fix = "put the change into the folder's files; or, to undo it, "
            by_hand = kubectl.format_command("apply", "--server-side", "--force-conflicts")
            raise UserError(
                error.message,
                fix=f"{fix} {by_hand} --field-manager={MANAGER} -k DIR",
                exit_code=ExitCode.BLOCKED,
            ) from None
        if _IMMUTABLE.search(error.message):
            fix = (
                "delete the object that it names with  kubectl delete --cascade=orphan, and apply "
            )
            fix += "again; deleting a volume's claim deletes its data"
            raise UserError(error.message, fix=fix, exit_code=ExitCode.FAILED) from None
        raise


def _apply(folder: Folder, plan: Steps) -> None:
    kubectl = folder.kubectl
    with follow(folder, f"apply {clean_text.clean_line(folder.name)}") as follower:
        follower.remember()
        follower.phase("objects", "apply the folder")
        if plan.job == "replace" and folder.job is not None:
            kubectl.run(
                "delete", "job", answers.read_name(folder.job), "--ignore-not-found", "--wait"
            )
        _send(kubectl, plan.first)
        if folder.job is not None:
            follower.phase("weights", "fetch and verify the weights")
            follower.wait(diagnosis.judge_job)
        stops = folder.replicas == 0
        follower.phase("engine", "let answers end, and the pods" if stops else "start the engine")
        # The number of replicas may have changed: the weights took hours.
        row, size = choose_size(folder, kubectl.get(folder.kind, folder.name))
        _send(kubectl, [row])
        if size is not None:
            _scale(folder, size)
        if stops:
            follower.wait(_judge_end, ends="stopped")
        else:
            follower.wait(diagnosis.judge_engine)


def _scale(folder: Folder, replicas: int) -> None:
    folder.kubectl.run("scale", folder.resource, f"--replicas={replicas}")


def _format_served(folder: Folder) -> str:
    model = ", ".join(folder.plan["model"]["served_names"])
    return kubernetes.format_served(folder.urls, model, clean_text.quote_word(folder.path))


def start(path: Path, target: Target, output: Output) -> ExitCode:
    """Scale a stopped model up again and wait until it answers."""
    folder = _read(path, target)
    _require_applied(folder)
    title = f"start {clean_text.clean_line(folder.name)}"
    with locks.hold_lock(path, "start", find_state_home()), follow(folder, title) as follower:
        follower.remember()
        _scale(folder, folder.replicas or 1)
        follower.phase("engine", "start the engine")
        follower.wait(diagnosis.judge_engine)
    known = {"was": None, "seconds": None, "held": None}
    document = _build_document("start", folder, "it serves", known)
    output.write(document, lambda: _format_served(folder))
    return ExitCode.OK


def stop(path: Path, target: Target, output: Output) -> ExitCode:
    """Scale to zero and wait until the pods have ended; the volume stays."""
    folder = Folder.read(path, target)
    _require_applied(folder)
    title = f"stop {clean_text.clean_line(folder.name)}"
    with locks.hold_lock(path, "stop", find_state_home()), follow(folder, title) as follower:
        _scale(folder, 0)
        follower.phase("engine", "let answers end, and the pods")
        follower.wait(_judge_end, ends="stopped")
    told = "stopped; its volume stays"
    document = _build_document("stop", folder, told, {"requests_cut": None, "seconds": None})
    output.write(document, lambda: f"{clean_text.clean_line(folder.name)} is {told}")
    say(f"next:  kimi-prov start {clean_text.quote_word(path)}")
    return ExitCode.OK


def _build_document(
    command: str, folder: Folder, detail: str, known: Mapping[str, object]
) -> dict[str, object]:
    """Return the document of a stop or start, with the folder as its only host."""
    row = {"ok": True, "detail": detail, **known}
    return {"schema": f"kimi-prov/{command}/v1", "ok": True, "hosts": {folder.name: row}}


def _judge_end(found: diagnosis.Snapshot, before: Baseline) -> diagnosis.Status:
    """Judge a stop: troubles of pods do not matter any more."""
    if found.pods:
        standing = diagnosis.judge_engine(found, before)
        return replace(standing, state="starting", trouble=None)
    return diagnosis.Status("stopped", "no pod is left")


def _require_applied(folder: Folder) -> None:
    """Raise UserError for a folder that was not applied."""
    if folder.kubectl.get(folder.kind, folder.name) is None:
        raise UserError(
            f"{folder.kubectl.where}: there is no {folder.resource}",
            fix=f"kimi-prov apply {clean_text.quote_word(folder.path)}",
            exit_code=ExitCode.FAILED,
        )
