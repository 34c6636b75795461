"""One difference between what was applied and what is there, and where its cause is to be found."""

from __future__ import annotations

from dataclasses import dataclass, field

# INVENTORY: the control machine, which knows it, puts the inventory's path there.
APPLY = "kimi-prov apply INVENTORY"
# In the place of what is not there: null would mean that it is not known.
ABSENT = "absent"


@dataclass(frozen=True)
class Account:
    """What of a user or group is other: by this the logs tell the change from others of its name.

    `fields`: of a user, as they are now (uid, gid, home, shell). `joined` and `left`: members of a
    group. `gone`: it is not there any more.
    """

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class Trace:
    """Where a cause may be found.

    `path`: a file whose inode tells when it changed, `gone` where it is not there any more: then
    its folder's does. `package`: as the logs name it. `account`: what of it is other. `unit`: whose
    stop is the cause. `words`: all of them stand in a command that made such a change. `at`:
    seconds since 1970, where the change itself is known to be of then.
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
