"""A target that is several equal hosts serving one model together: how many, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.facts import links

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.plan import MachinePlan


def count_hosts(plan: MachinePlan) -> int:
    """Tell how many hosts a plan is for."""
    return int((plan.get("parallel") or {}).get("hosts") or 1)


def count_target_hosts(target: Target) -> int:
    """Tell how many hosts a target is."""
    return count_hosts(target["plan"])


def describe_each(target: Target, text: str) -> str:
    """Say of a figure of one host that each of several has it."""
    hosts = count_target_hosts(target)
    return f"{hosts} hosts, each {text}" if hosts > 1 else text


def describe_on_each(target: Target, text: str) -> str:
    """Say of what a host needs that each of several does."""
    return f"{text} on each host" if count_target_hosts(target) > 1 else text


def describe_link(target: Target) -> str:
    """Say how many hosts there are, and by what a sheet says that they are joined."""
    hosts, group = count_target_hosts(target), target["facts"].get("group")
    link = group and group["link"]
    return f"{hosts}, joined by {links.format_link(link)}" if hosts > 1 and link else f"{hosts}"


def count_machines(many: int, hosts: int) -> str:
    """Count machines, or groups of several that serve one model."""
    if hosts > 1:
        return f"{many:,} group{'s' * (many != 1)} of {hosts} machines"
    return f"{many:,} machine{'s' * (many != 1)}"
