"""`cluster jobs [--living]`: the folder's jobs, and where its servers answer, as one document.

An endpoint's file counts only if SLURM agrees: a node that died, and a job that was killed, do not
remove it. `--living` does not query the site's accounting for jobs that have ended.
"""

from __future__ import annotations

import glob
import os
from datetime import datetime, timedelta, timezone
from typing import Any

from kimi_prov.on_host.cluster import endpoint, queue
from kimi_prov.on_host.cluster.queue import Queued
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json

SCHEMA = "kimi-prov/jobs/v1"
LOST = "lost"
_OPEN = ("loading", "ready", "draining")


def main(argv: list[str]) -> int:
    """Print the document."""
    site = Site.from_environment()
    return answer(build_document(site, history="--living" not in argv))


def build_document(site: Site, *, history: bool) -> dict[str, Any]:
    """Return the folder's jobs, the newest first. Raises HostError where SLURM does not answer."""
    files = _read_endpoints(site)
    listed = queue.list_jobs(site.folder, history=history)
    rows = [_build_row(site, job, files.pop(job.number, None)) for job in listed]
    rows += [
        _build_forgotten_row(site, number, told)
        for number, told in files.items()
        if _is_recent(told)
    ]
    return {
        "schema": SCHEMA,
        "folder": site.folder,
        "root": site.root,
        "jobs": sorted(rows, key=lambda row: int(row["id"]), reverse=True),
    }


def _read_endpoints(site: Site) -> dict[str, dict[str, Any]]:
    """Return what this folder's servers published, by job."""
    here = os.path.realpath(site.folder)
    found: dict[str, dict[str, Any]] = {}
    for path in glob.glob(site.locate(endpoint.FOLDER, "*.json")):
        number = os.path.basename(path)[: -len(".json")]
        told = read_json(path)
        ours = told.get("schema") == endpoint.SCHEMA
        if number.isdigit() and ours and os.path.realpath(str(told.get("folder"))) == here:
            found[number] = {**told, "file": path}
    return found


def _is_recent(told: dict[str, Any]) -> bool:
    """Return whether a server that SLURM no longer knows is still listed.

    It writes its file at its start and at its end: for one that was lost the walltime counts.
    """
    try:
        written = os.stat(told["file"]).st_mtime
    except FileNotFoundError:
        return False
    ends = str(told.get("ends_at"))
    now = datetime.now(timezone.utc)
    lately = (now - timedelta(seconds=queue.LATELY_S)).strftime("%Y-%m-%dT%H:%M:%SZ")
    lost = told.get("state") in _OPEN and ends.endswith("Z") and ends > lately
    return lost or now.timestamp() - written < queue.LATELY_S


def _build_row(site: Site, job: Queued, told: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": job.number,
        "name": job.name,
        "job_name": job.job_name,
        "state": job.state,
        "reason": job.reason,
        "nodes": job.nodes,
        "starts_at": job.starts_at,
        "ends_at": job.ends_at,
        "left_s": job.left_s,
        "log": _find_log(site, job),
        # A job that is queued again has a file with the nodes that it no longer has.
        "endpoint": _build_endpoint(told, lives=job.lives) if told and not job.waits else None,
    }


def _build_forgotten_row(site: Site, number: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a server that SLURM no longer knows."""
    gone = Queued(number, queue.SERVER, "", "", None, None, None, None, None)
    return {
        **_build_row(site, gone, told),
        "state": None,
        "endpoint": _build_endpoint(told, lives=False),
    }


def _build_endpoint(told: dict[str, Any], *, lives: bool) -> dict[str, Any]:
    """Return what a file says, as far as the state of its job confirms it."""
    state = str(told.get("state"))
    return {
        "state": LOST if state in _OPEN and not lives else state,
        "url": str(told.get("url")),
        "node": str(told.get("node")),
        "model": str(told.get("model")),
        "certificate_sha256": _get_fingerprint(told),
        "successor": str(told["successor"]) if told.get("successor") else None,
        "notes": [str(note) for note in told.get("notes") or []],
        "file": told["file"],
    }


def _find_log(site: Site, job: Queued) -> str | None:
    """Return the job's log, by the name that the rendered jobs give it; None without one."""
    path = os.path.join("logs", f"kimi-{job.name}.{job.number}.out")
    return path if os.path.exists(os.path.join(site.folder, path)) else None


def _get_fingerprint(told: dict[str, Any]) -> str | None:
    try:
        return tls.compute_fingerprint(str(told.get("certificate"))) or None
    except ValueError:
        return None
