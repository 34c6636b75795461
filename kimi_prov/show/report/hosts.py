"""Describe a target of several equal hosts that serve one model together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.facts import links

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.plan import MachinePlan


def count_hosts(plan: MachinePlan) -> int:
    """Return the number of hosts of a plan."""
    return int((plan.get("parallel") or {}).get("hosts") or 1)


def count_target_hosts(target: Target) -> int:
    """Return the number of hosts of a target."""
    return count_hosts(target["plan"])


def describe_each(target: Target, text: str) -> str:
    """Add to one host's figure that each of several hosts has it."""
    hosts = count_target_hosts(target)
    return f"{hosts} hosts, each {text}" if hosts > 1 else text


def describe_on_each(target: Target, text: str) -> str:
    """Add to one host's need that each of several hosts has it."""
    return f"{text} on each host" if count_target_hosts(target) > 1 else text


def describe_link(target: Target) -> str:
    """Describe the number of hosts, and the network between them by the sheet."""
    hosts, group = count_target_hosts(target), target["facts"].get("group")
    link = group and group["link"]
    return f"{hosts}, joined by {links.format_link(link)}" if hosts > 1 and link else f"{hosts}"


def count_machines(many: int, hosts: int) -> str:
    """Write a number of machines, or of groups of several that serve one model."""
    if hosts > 1:
        return f"{many:,} group{'s' * (many != 1)} of {hosts} machines"
    return f"{many:,} machine{'s' * (many != 1)}"
