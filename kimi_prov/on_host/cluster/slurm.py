"""SLURM's own commands, as a job calls them; what they print is data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import List, Mapping, Optional

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.process import NOT_FOUND, run

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBER = re.compile(r"[0-9]+")
_TIMEOUT_S = 60
# A job in one of these no longer runs, nor will it.
_GONE = ("invalid job id", "invalid job array")
_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REVOKED"),
    }
)


@dataclass(frozen=True)
class Job:
    """The job that this process runs in: its number, and its nodes, the head first."""

    number: str
    nodes: List[str]

    @classmethod
    def own(cls, environment: Mapping[str, str]) -> Job:
        """Read it. Raises HostError outside of a job."""
        number, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST")
        if not _NUMBER.fullmatch(number) or not listed:
            raise HostError("this runs in a job of SLURM alone", "sbatch jobs/serve.sbatch")
        done = run("scontrol", "show", "hostnames", listed, timeout=_TIMEOUT_S)
        nodes = done.stdout.split()
        if done.returncode != 0 or not nodes or not all(map(_NAME.fullmatch, nodes)):
            raise HostError(f"scontrol show hostnames: {_said(done.stderr, done.stdout)}")
        return cls(number, nodes)


def lives(number: str) -> Optional[bool]:
    """Whether a job runs or waits; None where SLURM does not tell."""
    done = run("squeue", "--noheader", f"--jobs={number}", "--format=%T", timeout=_TIMEOUT_S)
    if done.returncode != 0:
        return False if any(words in done.stderr.lower() for words in _GONE) else None
    states = set(done.stdout.split())
    return bool(states - _ENDED)


def ends_at(number: str, environment: Mapping[str, str]) -> Optional[str]:
    """Return when a job's walltime ends, UTC; None where SLURM does not tell."""
    known = environment.get("SLURM_JOB_END_TIME", "")
    if _NUMBER.fullmatch(known):
        return _utc(float(known))
    done = run("squeue", "--noheader", f"--jobs={number}", "--format=%e", timeout=_TIMEOUT_S)
    try:
        # squeue prints the cluster's own time, which is this process's.
        return _utc(datetime.strptime(done.stdout.strip(), "%Y-%m-%dT%H:%M:%S").timestamp())  # noqa: DTZ007
    except ValueError:
        return None


def preempted(number: str) -> bool:
    """Whether SLURM takes the nodes of a job that runs for another one."""
    done = run(
        "squeue", "--noheader", f"--jobs={number}", "--Format=PreemptTime", timeout=_TIMEOUT_S
    )
    return done.returncode == 0 and bool(re.match(r"\d{4}-", done.stdout.strip()))


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def submit(script: str, folder: str, after: str) -> str:
    """Submit a job that starts when another has ended; return its number. Raises HostError."""
    # The new job has an environment of its own: what SLURM told this one is not handed on.
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "SRUN_"))}
    done = run(
        "sbatch", "--parsable", f"--dependency=afterany:{after}", script,
        timeout=_TIMEOUT_S, cwd=folder, env=environment,
    )  # fmt: skip
    number = done.stdout.strip().partition(";")[0]
    if done.returncode != 0 or not _NUMBER.fullmatch(number):
        missing = done.returncode == NOT_FOUND
        raise HostError(
            "sbatch is not on this node" if missing else f"sbatch: {_said(done.stderr, number)}",
            f"submit the successor by hand:  sbatch {script}",
        )
    return number


def _said(*texts: str) -> str:
    return " ".join(" ".join(texts).split())[:300] or "it gave no answer"
