"""Checks that the times of a SLURM job do not contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError
from kimi_prov.on_host.cluster.slurm import parse_time_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIGNAL, _TIME = "kimi_slurm_signal_s", "kimi_slurm_time"


def check_walltime(values: Mapping[str, Any], host: str, find: Callable[[str], str | None]) -> None:
    """Raise UserError, with file and line, for a signal that would come before the job begins."""
    ahead_s, walltime_s = values[_SIGNAL], parse_time_s(values[_TIME])
    # 0 means no limit.
    if not walltime_s or ahead_s < walltime_s:
        return
    name, other, least = _SIGNAL, f"{walltime_s:.0f} s of {_TIME}", "less"
    # Where only one of the two is set, the message names that one, not the default of the other.
    if find(_SIGNAL) is None and find(_TIME) is not None:
        name, other, least = _TIME, f"{ahead_s} s of {_SIGNAL}", "more"
    raise UserError(
        f"{find(name) or f'host {host}'}: {name}: expected {least} than the {other}, found "
        f"{values[name]}",
        fix=f"give the job more time in {_TIME}, or make {_SIGNAL} shorter: in it answers end, and "
        "the next job is submitted",
    )
