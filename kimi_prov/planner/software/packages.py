"""The distribution's packages that `apply` has to install, and what prevents their installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text, paths
from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.machine import PackageLock
    from kimi_prov.contract.documents.plan import Plan

_MAX_NAMES = 8


def list_missing(plan: Plan, facts: Facts) -> list[str]:
    """List the plan's packages that are not installed; all of them where dpkg gave no answer."""
    return sorted(set(plan["packages"]) - set(facts["packages"].get("installed") or ()))


def is_install_needed(plan: Plan, facts: Facts) -> bool:
    """Whether apt has something to install; False where dpkg does not manage the packages."""
    if facts["packages"].get("installed") is None:
        return False
    return bool(list_missing(plan, facts)) or plan["driver"]["action"] == "install"


def make_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of a call of apt, with the site's mirror and proxy where it has them.

    `plan`: None for a host that only watches.
    """
    environment = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    site = plan["site"] if plan else {"proxy": None, "apt_mirror": None}
    if site["proxy"]:
        environment |= {
            "APT_CONFIG": paths.APT_PROXY,
            "no_proxy": ",".join(site["proxy"]["no_proxy"]),
        }
    if site["apt_mirror"] or "bundle" in site:
        # This file names the proxy too.
        environment["APT_CONFIG"] = paths.APT_CONFIG
    return environment


def describe_holder(row: PackageLock) -> str:
    """Name the program that holds a lock, its process and its unit."""
    parts = [f"PID {row['pid']}"] if row.get("pid") else []
    parts += [clean_text.clean_line(str(row["unit"]))] if row.get("unit") else []
    name = clean_text.clean_line(str(row.get("process") or "another program"))
    shown = f"{name} ({', '.join(parts)})" if parts else name
    return f"{shown} holds {row['lock']}"


def describe_lock_timeout(row: PackageLock, waited_s: float) -> Observation:
    """Report that the locks stayed held, and how to end the program that holds them."""
    unit, pid = row.get("unit"), row.get("pid")
    fix = "wait until it ends, then run this again"
    if unit and str(unit).endswith(".service"):
        fix = (
            "wait until it ends, or  systemctl stop "
            f"{clean_text.quote_word(str(unit))}  and run this again"
        )
    elif pid:
        fix = f"wait until it ends (ps -fp {pid}  shows what it is at), then run this again"
    return Observation(
        severity="blocker",
        observed=f"{describe_holder(row)}, after {waited_s:.0f} s",
        required="the locks of apt and dpkg",
        fix=fix,
    )


def describe_unfinished(names: Sequence[str]) -> Observation:
    """Say which packages dpkg has not finished."""
    shown = ", ".join(clean_text.clean_line(name) for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return Observation(
        observed=f"{shown}{more}",
        required="nothing in dpkg --audit",
        fix="dpkg --configure -a, and apt-get --fix-broken install where that does not do",
    )
