"""Read the state of a folder's objects in its cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.diagnosis import GROUP_REVISION, Snapshot, Trouble, add_log
from kimi_prov.operate.kubernetes.folder import WORKLOADS, read_component
from kimi_prov.operate.kubernetes.kubectl import ForbiddenError

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.folder import Folder

_LINES = 60
_CLAIMS = "persistentvolumeclaims"


def take_snapshot(folder: Folder) -> Snapshot:
    """Ask the cluster for all objects. Raises UserError where it does not answer or refuses."""
    objects = _list_by_kind(folder, (folder.kind, "jobs.batch", "pods"), folder.selector)
    # Claims are found by name: a claim of the site has no label of ours.
    beside = _list_by_kind(folder, (_CLAIMS, "events"), but="events")
    claims = {answers.read_name(row) for row in folder.of_kind("PersistentVolumeClaim")}
    job = (
        _find_by_name(objects["jobs.batch"], answers.read_name(folder.job)) if folder.job else None
    )
    pods = _sort_pods(objects["pods"])
    fetching = [
        pod for pod in pods if answers.read_name(job) and _find_job(pod) == answers.read_name(job)
    ]
    return Snapshot(
        workload=_find_by_name(objects[folder.kind], folder.name),
        job=job,
        pods=[pod for pod in pods if read_component(pod) == "engine"],
        fetching=fetching,
        claims=[row for row in beside[_CLAIMS] if answers.read_name(row) in claims],
        events=beside["events"],
        revision=_read_revision(folder),
        now_unix=time.time(),
    )


def _list_by_kind(
    folder: Folder, kinds: tuple[str, ...], selector: str = "", but: str = ""
) -> dict[str, list[Object]]:
    """Ask for kinds. Raises UserError where the user may not list one, except the kind `but`."""
    objects = folder.kubectl.several(kinds, selector)
    if hidden := [kind for kind, rows in objects.items() if rows is None and kind != but]:
        raise ForbiddenError(
            f"{folder.kubectl.where}: the user may not list {', '.join(hidden)}",
            fix="ask who runs the cluster for that right",
        )
    return {kind: rows or [] for kind, rows in objects.items()}


def _read_revision(folder: Folder) -> str:
    """Return a group's present revision: its status has none, its leaders' StatefulSet has."""
    if folder.kind == WORKLOADS["StatefulSet"]:
        return ""
    try:
        leaders = folder.kubectl.get(WORKLOADS["StatefulSet"], folder.name)
    except ForbiddenError:
        return ""
    return answers.read_text(leaders, "metadata", "labels", GROUP_REVISION)


def _find_by_name(rows: list[Object], name: str) -> Object | None:
    return next((row for row in rows if answers.read_name(row) == name), None)


def _find_job(pod: Object) -> str:
    return answers.read_text(pod, "metadata", "labels", "job-name")


def _sort_pods(pods: list[Object]) -> list[Object]:
    """Return the pods, the oldest first."""
    named = [pod for pod in pods if answers.read_name(pod)]
    return sorted(named, key=lambda pod: answers.read_text(pod, "metadata", "creationTimestamp"))


def read_log(
    folder: Folder, pod: str, container: str, *, previous: bool = False, lines: int
) -> str:
    """Return the end of a container's log, "" where there is none."""
    words = ["logs", pod, f"--tail={lines}", *(["--previous"] if previous else [])]
    if answers.NAME.fullmatch(container):
        words += ["--container", container]
    try:
        return folder.kubectl.run(*words) if answers.NAME.fullmatch(pod) else ""
    except UserError:
        # A missing log is no trouble: a container that never ran has none.
        return ""


def read_last_line(folder: Folder, pods: list[Object]) -> str:
    """Return the last line that the newest of these pods has written."""
    running = [pod for pod in pods if answers.read_text(pod, "status", "phase") == "Running"]
    if not running:
        return ""
    line = read_log(folder, answers.read_name(running[-1]), "", lines=1).strip()
    return clean_text.clean_line(line.rpartition("\n")[2])[:160]


def explain_trouble(folder: Folder, trouble: Trouble) -> tuple[Trouble, str]:
    """Return a trouble with what the log says about it, and the end of that log."""
    if trouble.log is None:
        return trouble, ""
    pod, container, previous = trouble.log
    log = read_log(folder, pod, container, previous=previous, lines=_LINES)
    if previous and not log.strip():
        log = read_log(folder, pod, container, lines=_LINES)
    return add_log(trouble, log), log


def make_error(folder: Folder, trouble: Trouble) -> UserError:
    """Return a trouble as the error that ends a command."""
    kubectl = folder.kubectl.format_command()
    return UserError(
        trouble.cause,
        fix=trouble.fix.replace("{kubectl}", kubectl),
        exit_code=trouble.exit_code,
    )
