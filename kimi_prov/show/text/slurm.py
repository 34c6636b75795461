"""The documents of a SLURM folder's jobs as text, within a terminal's width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration
from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from kimi_prov.contract.documents.jobs import Cancel, Job, Jobs
    from kimi_prov.contract.documents.submit import Submit, SubmittedJob

_ROW = "{:<12} {:<9} {:<13} {:<16} {:<12} {}"


def format_jobs(document: Jobs) -> str:
    """Write the folder's jobs: one a line, and below a server its URL."""
    if not document["jobs"]:
        return f"{clean_text.clean_line(document['folder'])}: no jobs"
    lines = [_ROW.format("JOB", "ID", "STATE", "NODES", "TIME LEFT", "SERVER").rstrip()]
    for row in document["jobs"]:
        lines += _format_job(row)
    return "\n".join(lines)


def _format_job(row: Job) -> list[str]:
    found = row["endpoint"]
    left = format_duration(row["left_s"]) if row["left_s"] is not None else "-"
    name = row["name"] or clean_text.clean_line(row["job_name"]) or "-"
    words = (name, row["id"], row["state"] or "not known", row["nodes"] or "-", left)
    lines = [
        _ROW.format(*map(clean_text.clean_line, words), found["state"] if found else "").rstrip()
    ]
    if row["reason"]:
        lines += _wrap(f"reason: {row['reason']}")
    if found and found["state"] in ("loading", "ready", "draining"):
        lines += _wrap(f"{found['url']}  {found['model']}")
    if found and found["successor"]:
        lines += _wrap(f"job {found['successor']} takes over")
    for note in found["notes"] if found else ():
        lines += _wrap(f"note: {note}")
    if row["log"] and (_has_failed(row) or row["state"] == "FAILED"):
        lines += _wrap(f"log: {row['log']}")
    return lines


def has_lost_server(document: Jobs) -> bool:
    """Whether the newest known server has failed or was lost."""
    servers = [row for row in document["jobs"] if row["name"] == "serve"]
    return bool(servers) and _has_failed(servers[0])


def _has_failed(row: Job) -> bool:
    found = row["endpoint"]
    return found is not None and found["state"] in ("failed", "lost")


def _wrap(text: str) -> list[str]:
    return wrap(clean_text.clean_line(text), "  ", "    ")


def format_submitted(document: Submit) -> str:
    """Write what became of each job."""
    return "\n".join(f"{row['name']:<12} {_describe_outcome(row)}" for row in document["jobs"])


def _describe_outcome(row: SubmittedJob) -> str:
    if row["outcome"] == "complete":
        return "is complete already"
    if row["outcome"] == "queued":
        return f"job {row['id']} waits or runs already"
    after = f", after {' and '.join(row['after'])}" if row["after"] else ""
    return f"job {row['id']}{after}"


def format_cancelled(document: Cancel) -> str:
    """Write what became of each job."""
    if not document["jobs"]:
        return f"{clean_text.clean_line(document['folder'])}: no job waits or runs"
    told = {
        "ending": "takes no more requests, lets answers end, has no successor",
        "cancelled": "cancelled",
    }
    return "\n".join(
        f"{row['name'] or 'job':<12} {row['id']:<9} {told[row['outcome']]}"
        for row in document["jobs"]
    )
