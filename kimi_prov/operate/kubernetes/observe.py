"""Looks at what a folder has become in its cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.diagnosis import GROUP_REVISION, Snapshot, Trouble, of_log
from kimi_prov.operate.kubernetes.folder import WORKLOADS, component
from kimi_prov.operate.kubernetes.kubectl import ForbiddenError

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.folder import Folder

_LINES = 60
_CLAIMS = "persistentvolumeclaims"


def snapshot(folder: Folder) -> Snapshot:
    """Ask for all of it. Raises UserError where the cluster is not reached, or does not tell."""
    found = _seen(folder, (folder.kind, "jobs.batch", "pods"), folder.selector)
    # Of a claim its name counts: a site's own has no label of ours.
    beside = _seen(folder, (_CLAIMS, "events"), but="events")
    claims = {answers.name(row) for row in folder.of_kind("PersistentVolumeClaim")}
    job = _called(found["jobs.batch"], answers.name(folder.job)) if folder.job else None
    pods = _named(found["pods"])
    fetching = [pod for pod in pods if answers.name(job) and _job(pod) == answers.name(job)]
    return Snapshot(
        workload=_called(found[folder.kind], folder.name),
        job=job,
        pods=[pod for pod in pods if component(pod) == "engine"],
        fetching=fetching,
        claims=[row for row in beside[_CLAIMS] if answers.name(row) in claims],
        events=beside["events"],
        revision=_revision(folder),
        now_unix=time.time(),
    )


def _seen(
    folder: Folder, kinds: tuple[str, ...], selector: str = "", but: str = ""
) -> dict[str, list[Object]]:
    """Ask for kinds: what may not be seen is not what is not there, `but` for one of them."""
    found = folder.kubectl.several(kinds, selector)
    if hidden := [kind for kind, rows in found.items() if rows is None and kind != but]:
        raise ForbiddenError(
            f"{folder.kubectl.where}: the user may not list {', '.join(hidden)}",
            fix="ask who runs the cluster for that right",
        )
    return {kind: rows or [] for kind, rows in found.items()}


def _revision(folder: Folder) -> str:
    """Return a group's present revision: its status has none, its leaders' StatefulSet has."""
    if folder.kind == WORKLOADS["StatefulSet"]:
        return ""
    try:
        leaders = folder.kubectl.get(WORKLOADS["StatefulSet"], folder.name)
    except ForbiddenError:
        return ""
    return answers.text(leaders, "metadata", "labels", GROUP_REVISION)


def _called(rows: list[Object], name: str) -> Object | None:
    return next((row for row in rows if answers.name(row) == name), None)


def _job(pod: Object) -> str:
    return answers.text(pod, "metadata", "labels", "job-name")


def _named(pods: list[Object]) -> list[Object]:
    """Return the pods, the oldest first."""
    found = [pod for pod in pods if answers.name(pod)]
    return sorted(found, key=lambda pod: answers.text(pod, "metadata", "creationTimestamp"))


def log(folder: Folder, pod: str, container: str, *, previous: bool = False, lines: int) -> str:
    """Return the end of a container's log, "" where there is none."""
    words = ["logs", pod, f"--tail={lines}", *(["--previous"] if previous else [])]
    if answers.NAME.fullmatch(container):
        words += ["--container", container]
    try:
        return folder.kubectl.run(*words) if answers.NAME.fullmatch(pod) else ""
    except UserError:
        # No log is no trouble of its own: a container that never ran has none.
        return ""


def last_line(folder: Folder, pods: list[Object]) -> str:
    """Return the last line that the newest of these pods has written."""
    running = [pod for pod in pods if answers.text(pod, "status", "phase") == "Running"]
    if not running:
        return ""
    told = log(folder, answers.name(running[-1]), "", lines=1).strip()
    return clean_text.clean_line(told.rpartition("\n")[2])[:160]


def explained(folder: Folder, trouble: Trouble) -> tuple[Trouble, str]:
    """Return a trouble with what the log says of it, and the end of that log."""
    if trouble.log is None:
        return trouble, ""
    pod, container, previous = trouble.log
    told = log(folder, pod, container, previous=previous, lines=_LINES)
    if previous and not told.strip():
        told = log(folder, pod, container, lines=_LINES)
    return of_log(trouble, told), told


def raised(folder: Folder, trouble: Trouble) -> UserError:
    """Return a trouble as the error that ends a command."""
    kubectl = folder.kubectl.shown()
    return UserError(
        trouble.cause,
        fix=trouble.fix.replace("{kubectl}", kubectl),
        exit_code=trouble.exit_code,
    )
