"""A target that is several equal hosts serving one model together: how many, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.facts import links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.show.report.findings import Target


def count(plan: Mapping[str, Any]) -> int:
    """Tell how many hosts a plan is for."""
    return int((plan.get("parallel") or {}).get("hosts") or 1)


def of(target: Target) -> int:
    """Tell how many hosts a target is."""
    return count(target["plan"])


def each(target: Target, text: str) -> str:
    """Say of a figure of one host that each of several has it."""
    hosts = of(target)
    return f"{hosts} hosts, each {text}" if hosts > 1 else text


def on_each(target: Target, text: str) -> str:
    """Say of what a host needs that each of several does."""
    return f"{text} on each host" if of(target) > 1 else text


def joined(target: Target) -> str:
    """Say how many hosts there are, and by what a sheet says that they are joined."""
    hosts, link = of(target), (target["facts"].get("group") or {}).get("link")
    return f"{hosts}, joined by {links.format_link(link)}" if hosts > 1 and link else f"{hosts}"


def machines(many: int, hosts: int) -> str:
    """Count machines, or groups of several that serve one model."""
    if hosts > 1:
        return f"{many:,} group{'s' * (many != 1)} of {hosts} machines"
    return f"{many:,} machine{'s' * (many != 1)}"
