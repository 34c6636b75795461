"""The entry of a folder in the status document. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.operate.kubernetes import answers, diagnosis
from kimi_prov.operate.kubernetes.folder import digest

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.diagnosis import Snapshot
    from kimi_prov.operate.kubernetes.folder import Folder


def entry(
    folder: Folder, found: Snapshot, standing: diagnosis.Standing, now_unix: float
) -> dict[str, Any]:
    """Return what is known of a folder that was applied."""
    workload = found.workload
    ready = [pod for pod in found.pods if answers.holds(pod, "Ready")]
    since = min([s for pod in ready if (s := _since(pod)) is not None], default=None)
    return {
        "ok": standing.state in ("serving", "stopped"),
        "provisioned": True,
        "state": standing.state,
        "detail": standing.trouble.cause if standing.trouble else standing.line,
        "fix": _fix(folder, standing),
        "stand_ins": [],
        "kubernetes": {
            "context": folder.kubectl.context,
            "namespace": folder.kubectl.namespace,
            "kind": folder.workload["kind"],
            "name": folder.name,
            "replicas": answers.whole(workload, "spec", "replicas"),
            "ready": answers.whole(workload, "status", "readyReplicas"),
            "since_seconds": _ago(since, now_unix),
            "plan_current": _digest(workload) == folder.digest,
            "endpoints": folder.urls,
            "fetch": _fetch(found),
            "pods": [_pod(pod, now_unix) for pod in found.pods],
        },
    }


def absent(folder: Folder) -> dict[str, Any]:
    """Return the entry of a folder that was not applied."""
    path = clean_text.quote_word(folder.path)
    return {
        "ok": False,
        "provisioned": False,
        "detail": f"there is no {folder.resource} in {folder.kubectl.where}: "
        f"kimi-prov apply {path}",
        "stand_ins": [],
    }


def _fix(folder: Folder, standing: diagnosis.Standing) -> str | None:
    if standing.trouble:
        return standing.trouble.fix.replace("{kubectl}", folder.kubectl.shown())
    if standing.state == "stopped":
        return f"kimi-prov start {clean_text.quote_word(folder.path)}"
    return None


def _digest(workload: Object | None) -> str:
    template = answers.mapping(workload, "spec", "template")
    group = answers.mapping(workload, "spec", "leaderWorkerTemplate", "workerTemplate")
    return digest(template or group)


def _fetch(found: Snapshot) -> dict[str, str] | None:
    if found.job is None:
        return None
    standing = diagnosis.of_job(found, diagnosis.Before())
    state = {"serving": "complete"}.get(standing.state, standing.state)
    state = "fetching" if state == "starting" else state
    return {"job": answers.name(found.job), "state": state, "detail": standing.line}


def _pod(pod: Object, now_unix: float) -> dict[str, Any]:
    waiting = [
        answers.text(row, "state", "waiting", "reason")
        for row in answers.rows(pod, "status", "containerStatuses")
    ]
    return {
        "name": answers.name(pod),
        "phase": answers.text(pod, "status", "phase"),
        "reason": next((word for word in waiting if word), None),
        "ready": answers.holds(pod, "Ready"),
        "node": answers.text(pod, "spec", "nodeName") or None,
        "restarts": diagnosis.restarts(pod),
        "uptime_seconds": _ago(answers.unix(pod, "status", "startTime"), now_unix),
    }


def _since(pod: Object) -> float | None:
    return answers.unix(answers.condition(pod, "Ready"), "lastTransitionTime")


def _ago(then: float | None, now_unix: float) -> float | None:
    return None if then is None else max(now_unix - then, 0.0)
