"""One difference between what was applied and the present state, and clues to its cause."""

from __future__ import annotations

from dataclasses import dataclass, field

# INVENTORY: the control machine knows the inventory's path, and puts it there.
APPLY = "kimi-prov apply INVENTORY"
# The value of something that does not exist: null would mean that it is unknown.
ABSENT = "absent"


@dataclass(frozen=True)
class Account:
    """What differs of a user or group; it tells this change from others in the logs.

    `fields`: of a user, as they are now (uid, gid, home, shell). `joined` and `left`: members of a
    group. `gone`: it does not exist any more.
    """

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class Trace:
    """Where a cause may be found.

    `path`: a file whose inode shows when it changed; `gone` where it does not exist any more: then
    its folder's inode shows it. `package`: its name in the logs. `account`: what differs of it.
    `unit`: the unit whose stop is the cause. `words`: a command that made such a change contains
    all of them. `at`: seconds since 1970, where the time of the change itself is known.
    """

    path: str | None = None
    gone: bool = False
    package: str | None = None
    account: Account | None = None
    unit: str | None = None
    words: tuple[str, ...] = ()
    at: int | None = None


@dataclass(frozen=True)
class Difference:
    """`id`: of the finding; `expected` and `observed`: in words, or ABSENT; `fix`: a command."""

    id: str
    subject: str
    expected: str
    observed: str
    fix: str = APPLY
    trace: Trace = field(default_factory=Trace)
