"""`cluster submit [--suite full] [JOB ...]`: submit the folder's jobs, each after those it needs.

Without JOB: environment, weights and server. Jobs that are complete, wait or run already are named
and left out.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any, NoReturn

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.acceptance import catalogue
from kimi_prov.on_host.cluster import endpoint, environment, queue, slurm, weights
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "kimi-prov/submit/v1"
DEFAULT = ("environment", "weights", "serve")
# The jobs without which a job fails at once.
_AFTER = {
    "weights": ("environment",),
    "serve": ("environment", "weights"),
    "tune": ("environment", "weights"),
}
# These send requests to a server that answers.
_ASKING = ("bench", "accept")
# The full suite takes hours where the other takes minutes.
_FULL = ("--suite", catalogue.FULL)
_FULL_TIME, _FULL_S = "--time=04:00:00", 4 * 3600
_ARGUMENTS = re.compile(r"^[^#\n]*\$[@*]", re.MULTILINE)
_COMPLETE = {"environment": environment.is_complete, "weights": weights.is_complete}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise HostError(f"submit: {message}", "submit [--suite basic|full] [JOB ...]")


def main(argv: list[str]) -> int:
    """Submit, and print what was done with each job."""
    parser = _Parser(prog="submit")
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--suite", choices=catalogue.SUITES, default=catalogue.BASIC)
    options = parser.parse_args(argv)
    site = Site.from_environment()
    wanted = check(options.jobs)
    more: Sequence[str] = ()
    if options.suite == catalogue.FULL:
        check_suite(wanted)
        more = _build_full_time_options(site)
    if set(wanted) & set(_ASKING):
        endpoint.find(site, endpoint.NEWEST)
    living = _list_living(site)
    done: list[dict[str, Any]] = []
    for name in wanted:
        whole = options.suite == catalogue.FULL and name == "accept"
        done.append(_submit_job(site, name, living, done, more if whole else None))
    return answer({"schema": SCHEMA, "folder": site.folder, "jobs": done})


def check(words: list[str]) -> list[str]:
    """Return the jobs to submit, in the order in which they are needed. Raises HostError."""
    unknown = [word for word in words if word not in queue.NAMES]
    if unknown:
        raise HostError(f"no job is called {unknown[0]!r}", f"name one of {', '.join(queue.NAMES)}")
    return [name for name in queue.NAMES if name in (words or DEFAULT)]


def check_suite(jobs: Sequence[str]) -> None:
    """Raise HostError where a suite was named without the job that runs it."""
    if "accept" not in jobs:
        raise HostError("--suite: belongs to the job accept", "name it, or leave out --suite")


def _build_full_time_options(site: Site) -> list[str]:
    """Return the options for the time of the full suite; none where the job's own is as long.

    Raises HostError where the job's file does not pass the suite on.
    """
    file = os.path.join(site.folder, "jobs", "accept.sbatch")
    script = read_text(file)
    if not _ARGUMENTS.search(script):
        raise HostError(
            f"{file}: it takes no arguments, and --suite would be lost",
            'render the folder again, or end the file with  exec "${kimi[@]}" accept "$@"',
        )
    asked = slurm.read_walltime_s(script)
    return [_FULL_TIME] if asked is not None and asked < _FULL_S else []


def _list_living(site: Site) -> dict[str, str]:
    """Return by name the newest job of the folder that waits or runs."""
    found: dict[str, str] = {}
    for job in queue.list_jobs(site.folder):
        if job.name and job.lives:
            found.setdefault(job.name, job.number)
    return found


def _submit_job(
    site: Site,
    name: str,
    living: dict[str, str],
    done: list[dict[str, Any]],
    full: Sequence[str] | None,
) -> dict[str, Any]:
    """Submit one job unless there is no need; `living` gets its number.

    `full`: the options with which it runs the full suite; None where it does not.
    """
    script = f"jobs/{name}.sbatch"
    if not os.path.exists(os.path.join(site.folder, script)):
        raise HostError(f"{site.folder}/{script} is not there{_explain_absence(site, name)}")
    row: dict[str, Any] = {"name": name, "id": living.get(name), "after": []}
    if name in living and name not in _ASKING:
        return {**row, "outcome": "queued"}
    if name in _COMPLETE and _COMPLETE[name](site):
        return {**row, "outcome": "complete"}
    after = [living[needed] for needed in _AFTER.get(name, ()) if needed in living]
    waits = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    options = [*(waits if after else []), *(full or ())]
    arguments = () if full is None else _FULL
    # The jobs' output goes here, and git keeps no folder without files.
    os.makedirs(os.path.join(site.folder, "logs"), mode=0o755, exist_ok=True)
    try:
        number = slurm.submit_batch(script, site.folder, options, arguments=arguments)
    except HostError as error:
        before = [f"{one['name']} {one['id']}" for one in done if one["outcome"] == "submitted"]
        told = f"; submitted before it: {', '.join(before)}" if before else ""
        raise HostError(f"{error.message}{told}", error.fix or _describe_fix(site)) from None
    living[name] = number
    return {**row, "id": number, "after": after, "outcome": "submitted"}


def _explain_absence(site: Site, name: str) -> str:
    if name != "tune":
        return ""
    tuning = site.plan["moe_tuning"]
    reason = tuning["reason"] if tuning else "this engine has no such kernels, or no known tuner"
    return f": nothing is to be tuned: {reason}"


def _describe_fix(site: Site) -> str:
    return f"correct the #SBATCH lines of the job in {site.folder}/jobs"
