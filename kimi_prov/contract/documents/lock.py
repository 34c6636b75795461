"""The lock that one apply at a time has on a machine."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired


class LockHolder(TypedDict, total=False):
    """The run that applies to the machine; an earlier version sends fewer keys."""

    user: str
    control_host: str
    control_id: str
    """The control machine's own identity."""
    pid: int
    """Of ansible-playbook, and when that process started."""
    pid_start: int
    run: str
    """Different in each run."""
    boot_s: float
    """When it was renewed, in seconds since the boot."""
    since: str


class LockAnswer(TypedDict):
    """The answer of `lock`, and of `probe --lock`."""

    held: bool
    """Whether the caller has it."""
    holder: NotRequired[LockHolder]
    age_s: NotRequired[int]
    """Seconds since it was renewed."""
    renewed: NotRequired[bool]
    """Whether the same run had it already."""


class LockRefusal(TypedDict):
    """The lock that another run holds."""

    held: Literal[False]
    holder: LockHolder
    age_s: int
