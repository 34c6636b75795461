"""The jobs of a rendered folder, as SLURM lists them, whoever submitted them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import slurm
from kimi_prov.on_host.system.process import NOT_FOUND, run

# The jobs of a folder, in the order in which they are needed.
NAMES = ("environment", "weights", "serve", "tune", "bench", "accept")
SERVER = "serve"
# Seconds for which a job that has ended is listed.
LATELY_S = 86_400
# Free texts given to sbatch are unlikely to contain these. If they do, the other fields are still
# read correctly, because those texts come last.
_FIELD, _RECORD = "\x1f", "\x1e"
_ASKED = ("%A", "%T", "%r", "%N", "%S", "%e", "%L", "%Z", "%o", "%j")
_FORMAT = _FIELD.join(_ASKED) + _RECORD
_HISTORY = ("JobIDRaw", "State", "NodeList", "Start", "End", "WorkDir", "JobName")
_SCRIPT = re.compile(r"/jobs/([a-z]+)\.sbatch(?:\s|$)")
_CALLED = re.compile(r"kimi-([a-z]+)")
_LEFT = re.compile(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})")
_NODES = re.compile(r"[A-Za-z0-9._,\[\]-]+")


@dataclass(frozen=True)
class Queued:
    """A job as SLURM describes it. `name` is the folder's (`serve`), `job_name` is free text."""

    number: str
    name: str | None
    job_name: str
    state: str
    reason: str | None
    nodes: str | None
    starts_at: str | None
    ends_at: str | None
    left_s: int | None

    @property
    def lives(self) -> bool:
        """Return whether it waits or runs."""
        return self.state not in slurm.ENDED

    @property
    def waits(self) -> bool:
        """Return whether it has no nodes yet, or none any more."""
        return self.state in slurm.WAITING


def list_jobs(folder: str, *, history: bool = False) -> list[Queued]:
    """Return the folder's jobs, the newest first; with `history` recently ended ones too.

    Jobs that the controller still remembers are always listed. Raises HostError where SLURM does
    not answer.
    """
    done = run(
        *("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={_FORMAT}"),
        timeout=slurm.TIMEOUT_S,
    )
    if done.returncode == NOT_FOUND:
        raise HostError("squeue is not on this machine", slurm.NO_SLURM)
    if done.returncode != 0:
        reason = slurm.format_reason(done.stderr, done.stdout)
        raise HostError(f"squeue: {reason}", "try again when SLURM answers", retryable=True)
    here = os.path.realpath(folder)
    rows = [_parse_record(record, here) for record in done.stdout.split(_RECORD)]
    found = {row.number: row for row in rows if row}
    if history:
        found = {**{row.number: row for row in _list_ended(here)}, **found}
    return sorted(found.values(), key=lambda row: int(row.number), reverse=True)


def _parse_record(record: str, here: str) -> Queued | None:
    """Parse one record of squeue; None for another folder's job, and for anything else."""
    parts = record.lstrip("\n").split(_FIELD, len(_ASKED) - 1)
    if len(parts) != len(_ASKED):
        return None
    number, state, reason, nodes, starts, ends, left, folder, script, called = parts
    if not slurm.NUMBER.fullmatch(number) or not _is_same_folder(folder, here):
        return None
    return Queued(
        number,
        _find_job_name(script, called),
        called,
        state,
        None if reason in ("", "None") else reason,
        nodes if _NODES.fullmatch(nodes) else None,
        slurm.parse_time(starts),
        slurm.parse_time(ends),
        _parse_seconds_left(left),
    )


def _is_same_folder(folder: str, here: str) -> bool:
    """Whether SLURM's text names the folder `here`; a text that no path can be does not."""
    try:
        return os.path.realpath(folder) == here
    except (OSError, ValueError):
        return False


def _list_ended(here: str) -> list[Queued]:
    """Return the recent jobs of the site's accounting; nothing where there is none."""
    done = run(
        *("sacct", "--noheader", "--parsable2", "--allocations", f"--delimiter={_FIELD}"),
        *(f"--user={os.getuid()}", f"--starttime=now-{LATELY_S}seconds"),
        f"--format={','.join(_HISTORY)}",
        timeout=slurm.TIMEOUT_S,
    )
    if done.returncode != 0:
        return []
    found = []
    for line in done.stdout.split("\n"):
        parts = line.split(_FIELD, len(_HISTORY) - 1)
        if len(parts) != len(_HISTORY) or not slurm.NUMBER.fullmatch(parts[0]):
            continue
        number, state, nodes, starts, ends, folder, called = parts
        # "CANCELLED by 2001"
        state = state.partition(" ")[0]
        if state in slurm.ENDED and _is_same_folder(folder, here):
            told = nodes if _NODES.fullmatch(nodes) else None
            times = slurm.parse_time(starts), slurm.parse_time(ends)
            found.append(
                Queued(number, _find_job_name("", called), called, state, None, told, *times, None)
            )
    return found


def _find_job_name(script: str, called: str) -> str | None:
    """Return the folder's name of a job; None for a job that somebody added."""
    found = _SCRIPT.search(script) or _CALLED.fullmatch(called)
    return found[1] if found and found[1] in NAMES else None


def _parse_seconds_left(left: str) -> int | None:
    """Parse the rest of a walltime, D-HH:MM:SS; None for UNLIMITED and the like."""
    found = _LEFT.fullmatch(left.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
