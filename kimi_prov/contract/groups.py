"""Reads plans about the hosts that serve one model together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.plan.group import GroupPlan


def serves_clients(plan: Plan) -> bool:
    """Return whether clients are served on this host: not where the head of a group serves them."""
    group = plan.get("group")
    return not group or group["rank"] == 0


def has_proxy(plan: Plan) -> bool:
    """Return whether a proxy runs on this host: for clients, or for readers of its metrics."""
    return serves_clients(plan) or bool(plan.get("metrics"))


def get_group(plan: Plan) -> GroupPlan:
    """Return what a plan says of its group; raises HostError where the host serves alone."""
    group = plan.get("group")
    if group is None:
        raise HostError("the plan names no group: the host serves its model alone")
    return group


def get_head(plan: Plan) -> str:
    """Return the name of the host that serves for a group."""
    return get_group(plan)["members"][0]["host"]


def list_hosts(plan: Plan) -> list[str]:
    """Return the names of the hosts that serve a plan together; none for a single host."""
    group = plan.get("group")
    return [row["host"] for row in group["members"]] if group else []


def make_head_only_error(plan: Plan, what: str) -> HostError:
    """Return the refusal of what only the head of a group can do."""
    group, host = get_group(plan), get_head(plan)
    return HostError(
        f"this host is rank {group['rank']} of group {group['name']}, which {host} serves for: "
        f"{what} there",
        f"run the command for {host}",
    )
