"""Rules about what exists on a machine in use: mounts, accounts, its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.contract.documents.facts.kimi import AccountFacts

# Folders with code; weights are only read.
_CODE_DIRS = (paths.ROOT, paths.ENGINES)
_OWN_DIRS = (*_CODE_DIRS, paths.MODELS)
# The first uid of people's accounts (UID_MIN of login.defs).
_FIRST_USER_ID = 1000
_NO_LOGIN = ("nologin", "false", "sync", "halt", "shutdown")
# The usual tolerance of certificates and signed addresses; a smaller difference is no finding.
_MAX_CLOCK_SKEW_S = 300


@register_rule("disk.mount")
def _check_mounts(context: PlanContext) -> Iterator[RuleResult]:
    for row in context.facts["filesystems"]:
        held = [path for path in row.get("holds") or () if path in _OWN_DIRS]
        if not held:
            continue
        mount, options = row["mount"], row.get("options") or ()
        if "noexec" in options and set(held) & set(_CODE_DIRS):
            yield RuleResult(
                observed=f"{mount} is mounted with noexec",
                required=f"libraries below {held[0]} can be mapped to run",
                fix=f"mount -o remount,exec {mount}, and the same in /etc/fstab; or mount another "
                f"file system at {paths.ROOT}",
            )
        if "ro" in options:
            yield RuleResult(
                observed=f"{mount} is mounted read-only",
                required=f"{', '.join(held)} can be written",
                fix=f"mount -o remount,rw {mount}, and the same in /etc/fstab; where the kernel "
                "did it after an error, look into dmesg first",
            )
        elif row.get("writable") is False:
            yield RuleResult(
                observed=f"{mount} ({row.get('fstype') or 'unknown'}): root may not write there",
                required=f"root may write below {', '.join(held)}, and give files to {paths.USER}",
                fix=f"export it with no_root_squash, or mount a local file system at {paths.ROOT}",
            )

    links: dict[str, str] = {}
    for row in context.facts["filesystems"]:
        links |= row.get("linked") or {}
    for path in _OWN_DIRS:
        parent, _, name = path.rpartition("/")
        if path in links and links[path] != f"{links.get(parent, parent)}/{name}":
            yield RuleResult(
                observed=f"{path} is a link to {links[path]}",
                required="a folder, or a file system of its own; what lies above it may be a link",
                fix=f"rm {path}; mkdir {path}; mount --bind {links[path]} {path}, and the same "
                "in /etc/fstab",
            )


@register_rule("host.account")
def _check_accounts(context: PlanContext) -> Iterator[RuleResult]:
    kimi = context.facts["kimi"]
    before: Mapping[str, Any] | None = kimi.get("before")
    for name, row in sorted((kimi.get("accounts") or {}).items()):
        if row is None:
            continue
        if before is not None and not paths.did_user_exist(before, name, row["home"]):
            # A container may use the uid of the service's account by chance.
            continue
        shown = f"{name}: number {row['uid']}, home {row['home']}, shell {row['shell'] or 'none'}"
        reasons = _describe_foreign_account(row)
        if reasons:
            yield RuleResult(
                severity="blocker",
                names={"name": name},
                observed=f"{shown}; {'; '.join(reasons)}",
                required=f"no account {name}, or one of the system without a login, for the "
                "service alone",
                fix=f"stop what runs as it (pkill -u {name}), then give it another name: usermod "
                f"--login NEW {name}; groupmod --new-name NEW {name}",
            )
        else:
            yield RuleResult(
                severity="info",
                names={"name": name},
                observed=shown,
                required="an account of the system without a login",
            )


def _describe_foreign_account(row: AccountFacts) -> list[str]:
    """Return the signs that an account is not the service's own; empty without any."""
    signs = []
    shell = str(row["shell"] or "/bin/sh").rsplit("/", 1)[-1]
    if row["uid"] == 0:
        signs.append("it is root")
    elif row["uid"] >= _FIRST_USER_ID and shell not in _NO_LOGIN:
        signs.append("a person may log in as it")
    if row.get("processes"):
        signs.append(f"it runs {', '.join(row['processes'])}")
    return signs


@register_rule("host.clock")
def _check_clock(context: PlanContext) -> Iterator[RuleResult]:
    clock = context.facts.get("clock") or {}
    offset = clock.get("offset_s")
    if offset is None or abs(offset) <= _MAX_CLOCK_SKEW_S:
        return
    behind = offset < 0
    # A clock that a time server keeps is more likely right than another.
    kept = clock.get("synchronized") is True
    yield RuleResult(
        severity="blocker" if behind and not kept else "warning",
        observed=f"{_format_duration(abs(offset))} {'behind' if behind else 'ahead of'} the "
        "machine that this runs on" + (", and kept by a time server" if kept else ""),
        required=f"at most {_MAX_CLOCK_SKEW_S // 60} minutes apart",
        fix="compare `date -u` on both with a third, correct the one that is wrong, and have a "
        "time server keep it (apt-get install systemd-timesyncd)",
    )


def _format_duration(seconds: float) -> str:
    """Write a time roughly, in its largest unit: `2 hours`."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size * 0.95:
            many = round(seconds / size)
            return f"{many} {unit}{'s' if many != 1 else ''}"
    return f"{seconds:.0f} seconds"
