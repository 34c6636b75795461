"""The lock that one apply has on a machine at a time."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired


class LockHolder(TypedDict, total=False):
    """The run that applies to the machine; an earlier version says less."""

    user: str
    control_host: str
    control_id: str
    """The control machine's own identity."""
    pid: int
    """Of ansible-playbook, and when that process started."""
    pid_start: int
    run: str
    """No two runs have the same."""
    since: str


class LockAnswer(TypedDict):
    """What `lock` answers, and `probe --lock`."""

    held: bool
    """Whether the one who asked has it."""
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
