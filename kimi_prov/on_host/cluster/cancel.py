"""`cluster cancel [--now] [JOB|ID ...]`: end jobs of this folder; without a name, all of them.

A server that runs gets a signal to end: it takes no more requests, lets answers end, and submits no
successor. With `--now` SLURM kills it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import queue, slurm
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from kimi_prov.on_host.cluster.queue import Queued

SCHEMA = "kimi-prov/cancel/v1"
NOW = "--now"
# To the batch shell alone, which has become the server.
_END = ("--batch", "--signal=TERM")


def main(argv: list[str]) -> int:
    """Cancel, and print what was done with each job."""
    site = Site.from_environment()
    words = [word for word in argv if word != NOW]
    living = [job for job in queue.list_jobs(site.folder) if job.lives]
    # A successor first: else it might start before it is cancelled.
    chosen = sorted(_choose_jobs(site, words, living), key=lambda job: not job.waits)
    done = [_cancel_job(job, now=NOW in argv) for job in chosen]
    return answer({"schema": SCHEMA, "folder": site.folder, "jobs": done})


def _choose_jobs(site: Site, words: list[str], living: list[Queued]) -> list[Queued]:
    """Return the jobs that are named. Raises HostError for a job that is not of this folder."""
    if not words:
        return living
    known = {job.number for job in living} | {job.name for job in living if job.name}
    strange = [word for word in words if word not in known]
    if strange:
        there = ", ".join(f"{job.name or 'job'} {job.number}" for job in living) or "none"
        raise HostError(
            f"no job of {site.folder} that waits or runs is {', '.join(map(repr, strange))}",
            f"name one of its jobs: {there}",
        )
    return [job for job in living if job.number in words or job.name in words]


def _cancel_job(job: Queued, *, now: bool) -> dict[str, Any]:
    gently = job.name == queue.SERVER and not job.waits and not now
    done = run("scancel", *(_END if gently else ()), job.number, timeout=slurm.TIMEOUT_S)
    if done.returncode != 0:
        reason = slurm.format_reason(done.stderr, done.stdout)
        raise HostError(f"scancel {job.number}: {reason}", slurm.NO_SLURM, retryable=True)
    outcome = "ending" if gently else "cancelled"
    return {"id": job.number, "name": job.name, "outcome": outcome}
