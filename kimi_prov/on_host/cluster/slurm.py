"""SLURM's own commands, as a job calls them; their output is untrusted data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.process import NOT_FOUND, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# No number of SLURM has more digits.
NUMBER = re.compile(r"[0-9]{1,18}")
TIMEOUT_S = 60
NO_SLURM = "run it on the cluster's login node, or name that with --login USER@HOST"
_TIME = re.compile(r"^#SBATCH\s+(?:--time(?:=|\s+)|-t\s*)(\S+)", re.MULTILINE)
_DIGITS = "([0-9]{1,9})"
_DAYS = re.compile(rf"{_DIGITS}-{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_SHORT = re.compile(rf"(?:{_DIGITS}:)??{_DIGITS}(?::{_DIGITS})?")
_GONE = ("invalid job id", "invalid job array")
# A job in one of these states does not run, and will not.
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REVOKED"),
    }
)
# A job in one of these states does not run yet, or is queued again.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
)


@dataclass(frozen=True)
class Job:
    """The job that this process runs in: its number, and its nodes, the head first."""

    number: str
    nodes: list[str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Job:
        """Read the job of this process. Raises HostError outside of a job."""
        number, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST")
        if not NUMBER.fullmatch(number) or not listed:
            raise HostError("this runs only in a job of SLURM", "sbatch jobs/serve.sbatch")
        done = run("scontrol", "show", "hostnames", listed, timeout=TIMEOUT_S)
        nodes = done.stdout.split()
        if done.returncode != 0 or not nodes or not all(map(_NAME.fullmatch, nodes)):
            raise HostError(f"scontrol show hostnames: {format_reason(done.stderr, done.stdout)}")
        return cls(number, nodes)


def read_walltime_s(script: str) -> float | None:
    """Return the seconds that a job's file requests: 0 without a line, None for another form.

    The last line counts.
    """
    asked = _TIME.findall(script)
    return parse_time_s(asked[-1]) if asked else 0.0


def parse_time_s(text: str) -> float | None:
    """Return the seconds of a walltime, None for another form.

    As sbatch reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    days = _DAYS.fullmatch(text)
    found = [int(part or 0) for part in days.groups()] if days else None
    short = _SHORT.fullmatch(text)
    if found is None and short:
        found = [0, *(int(part or 0) for part in short.groups())]
    if found is None:
        return None
    return float(((found[0] * 24 + found[1]) * 60 + found[2]) * 60 + found[3])


def is_living(number: str) -> bool | None:
    """Return whether a job runs or waits; None where SLURM does not answer."""
    states = _read_states(number)
    return None if states is None else bool(states - ENDED)


def is_running(number: str) -> bool | None:
    """Return whether a job runs; None where SLURM does not answer."""
    states = _read_states(number)
    return None if states is None else bool(states - ENDED - WAITING)


def _read_states(number: str) -> set[str] | None:
    done = run("squeue", "--noheader", f"--jobs={number}", "--format=%T", timeout=TIMEOUT_S)
    if done.returncode != 0:
        return set() if any(words in done.stderr.lower() for words in _GONE) else None
    return set(done.stdout.split())


def find_end(number: str, environment: Mapping[str, str]) -> str | None:
    """Return when a job's walltime ends, UTC; None where SLURM does not answer."""
    known = environment.get("SLURM_JOB_END_TIME", "")
    if NUMBER.fullmatch(known):
        return _format_utc(int(known))
    done = run("squeue", "--noheader", f"--jobs={number}", "--format=%e", timeout=TIMEOUT_S)
    return parse_time(done.stdout)


def parse_time(text: str) -> str | None:
    """Return a time as SLURM prints it, in UTC; None for anything else (N/A, Unknown).

    SLURM prints the cluster's local time, which is also this process's.
    """
    try:
        return _format_utc(datetime.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S").timestamp())  # noqa: DTZ007
    except (ValueError, OverflowError, OSError):
        return None


def is_preempted(number: str) -> bool:
    """Return whether SLURM preempts a running job for another one."""
    done = run(
        "squeue", "--noheader", f"--jobs={number}", "--Format=PreemptTime", timeout=TIMEOUT_S
    )
    return done.returncode == 0 and bool(re.match(r"\d{4}-", done.stdout.strip()))


def _format_utc(moment: float) -> str | None:
    """Return a time in UTC; None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def submit(script: str, folder: str, after: str) -> str:
    """Submit a job that starts when another has ended; return its number. Raises HostError."""
    fix = f"submit the successor by hand:  sbatch {script}"
    return submit_batch(script, folder, [f"--dependency=afterany:{after}"], fix)


def submit_batch(
    script: str,
    folder: str,
    options: Sequence[str],
    fix: str | None = None,
    arguments: Sequence[str] = (),
) -> str:
    """Submit a job from a folder; return its number. Raises HostError, with `fix`.

    `options` are sbatch's, `arguments` the script's.
    """
    # The new job gets its own environment: SLURM's variables of this job are not passed on.
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "SRUN_"))}
    done = run(
        "sbatch", "--parsable", *options, script, *arguments,
        timeout=TIMEOUT_S, cwd=folder, env=environment,
    )  # fmt: skip
    number = done.stdout.strip().partition(";")[0]
    if done.returncode == NOT_FOUND:
        raise HostError("sbatch is not on this node", fix or NO_SLURM)
    if done.returncode != 0 or not NUMBER.fullmatch(number):
        raise HostError(f"sbatch {script}: {format_reason(done.stderr, number)}", fix)
    return number


def format_reason(*texts: str) -> str:
    """Return the reason that a command printed, on one line."""
    return " ".join(" ".join(texts).split())[:300] or "it gave no answer"
