"""Accounts and groups with our names, whoever made them."""

from __future__ import annotations

import grp
import pwd
from typing import TYPE_CHECKING

from kimi_prov.contract import paths, unit_names

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.kimi import AccountFacts
    from kimi_prov.on_host.system.machine import Machine

NAMES = (paths.USER, paths.PROXY_USER, paths.WEB_USER, paths.ACME_USER)
_SHOWN = 5


def list_accounts(machine: Machine) -> dict[str, AccountFacts | None]:
    """Return the account of each name; None where there is no such account."""
    return {name: _describe_account(machine, name) for name in NAMES}


def list_groups(machine: Machine) -> dict[str, int | None]:
    """Return the number of each group of our names; None where there is no such group."""
    return {name: _find_group(machine, name) for name in NAMES}


def list_members(machine: Machine) -> dict[str, list[str] | None]:
    """Return the other members of each group of our names; None where there is no such group."""
    found: dict[str, list[str] | None] = {}
    for name in NAMES:
        if machine.live:
            there = _find_group(machine, name) is not None
            found[name] = sorted(grp.getgrnam(name).gr_mem) if there else None
        else:
            row = _read_line(machine, "/etc/group", name)
            found[name] = sorted(filter(None, row[3].split(","))) if len(row) > 3 else None
    return found


def _describe_account(machine: Machine, name: str) -> AccountFacts | None:
    if machine.live:
        # Includes an account that only the site's directory knows.
        try:
            row = [str(part) for part in pwd.getpwnam(name)]
        except KeyError:
            return None
    else:
        row = _read_line(machine, "/etc/passwd", name)
        if len(row) < 7:
            return None
    uid, gid = int(row[2]), int(row[3])
    return {
        "uid": uid,
        "gid": gid,
        "home": row[5],
        "shell": row[6],
        "processes": _list_processes(machine, uid),
    }


def _find_group(machine: Machine, name: str) -> int | None:
    if machine.live:
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            return None
    row = _read_line(machine, "/etc/group", name)
    return int(row[2]) if len(row) > 2 else None


def _read_line(machine: Machine, database: str, name: str) -> list[str]:
    for line in (machine.read(database) or "").splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":")
    return []


def _list_processes(machine: Machine, uid: int) -> list[str]:
    """Return the account's processes that are in none of our units, by name; the first few."""
    found = set()
    for status in machine.glob("/proc/[0-9]*/status"):
        text = machine.read(status) or ""
        owner = text.partition("\nUid:")[2].split()[:1]
        if owner != [str(uid)]:
            continue
        cgroup = machine.read(status.replace("/status", "/cgroup")) or ""
        if not any(unit_names.is_ours(part) for part in cgroup.strip().split("/")):
            found.add(text.partition("Name:")[2].split("\n")[0].strip())
    return sorted(found)[:_SHOWN]
