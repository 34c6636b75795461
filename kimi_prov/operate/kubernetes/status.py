"""The entry of a folder in the status document. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.operate.kubernetes import answers, diagnosis
from kimi_prov.operate.kubernetes.folder import read_digest

if TYPE_CHECKING:
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.diagnosis import Snapshot
    from kimi_prov.operate.kubernetes.folder import Folder


def make_entry(
    folder: Folder, snapshot: Snapshot, standing: diagnosis.Status, now_unix: float
) -> dict[str, Any]:
    """Return the status entry of a folder that was applied."""
    workload = snapshot.workload
    ready = [pod for pod in snapshot.pods if answers.is_condition_true(pod, "Ready")]
    since = min([s for pod in ready if (s := _read_start_time(pod)) is not None], default=None)
    return {
        "ok": standing.state in ("serving", "stopped"),
        "provisioned": True,
        "state": standing.state,
        "detail": standing.trouble.cause if standing.trouble else standing.line,
        "fix": _suggest_fix(folder, standing),
        "stand_ins": [],
        "kubernetes": {
            "context": folder.kubectl.context,
            "namespace": folder.kubectl.namespace,
            "kind": folder.workload["kind"],
            "name": folder.name,
            "replicas": answers.read_int(workload, "spec", "replicas"),
            "ready": answers.read_int(workload, "status", "readyReplicas"),
            "since_seconds": _compute_age(since, now_unix),
            "plan_current": _read_digest(workload) == folder.digest,
            "endpoints": folder.urls,
            "fetch": _describe_fetch(snapshot),
            "pods": [_describe_pod(pod, now_unix) for pod in snapshot.pods],
        },
    }


def make_absent_entry(folder: Folder) -> dict[str, Any]:
    """Return the entry of a folder that was not applied."""
    path = clean_text.quote_word(folder.path)
    return {
        "ok": False,
        "provisioned": False,
        "detail": f"there is no {folder.resource} in {folder.kubectl.where}: "
        f"kimi-prov apply {path}",
        "stand_ins": [],
    }


def _suggest_fix(folder: Folder, standing: diagnosis.Status) -> str | None:
    if standing.trouble:
        return standing.trouble.fix.replace("{kubectl}", folder.kubectl.format_command())
    if standing.state == "stopped":
        return f"kimi-prov start {clean_text.quote_word(folder.path)}"
    return None


def _read_digest(workload: Object | None) -> str:
    template = answers.read_mapping(workload, "spec", "template")
    group = answers.read_mapping(workload, "spec", "leaderWorkerTemplate", "workerTemplate")
    return read_digest(template or group)


def _describe_fetch(snapshot: Snapshot) -> dict[str, str] | None:
    if snapshot.job is None:
        return None
    standing = diagnosis.judge_job(snapshot, diagnosis.Baseline())
    state = {"serving": "complete"}.get(standing.state, standing.state)
    state = "fetching" if state == "starting" else state
    return {"job": answers.read_name(snapshot.job), "state": state, "detail": standing.line}


def _describe_pod(pod: Object, now_unix: float) -> dict[str, Any]:
    waiting = [
        answers.read_text(row, "state", "waiting", "reason")
        for row in answers.read_rows(pod, "status", "containerStatuses")
    ]
    return {
        "name": answers.read_name(pod),
        "phase": answers.read_text(pod, "status", "phase"),
        "reason": next((word for word in waiting if word), None),
        "ready": answers.is_condition_true(pod, "Ready"),
        "node": answers.read_text(pod, "spec", "nodeName") or None,
        "restarts": diagnosis.count_restarts(pod),
        "uptime_seconds": _compute_age(answers.parse_time(pod, "status", "startTime"), now_unix),
    }


def _read_start_time(pod: Object) -> float | None:
    return answers.parse_time(answers.find_condition(pod, "Ready"), "lastTransitionTime")


def _compute_age(then: float | None, now_unix: float) -> float | None:
    return None if then is None else max(now_unix - then, 0.0)
