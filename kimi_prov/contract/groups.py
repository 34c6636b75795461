"""What a plan says of the hosts that serve one model together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping


def serves_clients(plan: Mapping[str, Any]) -> bool:
    """Whether clients are served on this host: not where the head of a group does it."""
    group = plan.get("group")
    return not group or group["rank"] == 0


def has_proxy(plan: Mapping[str, Any]) -> bool:
    """Whether a proxy runs on this host: for clients, or for those who read its metrics."""
    return serves_clients(plan) or bool(plan.get("metrics"))


def get_head(plan: Mapping[str, Any]) -> str:
    """Name the host that serves for a group."""
    return str(plan["group"]["members"][0]["host"])


def list_hosts(plan: Mapping[str, Any]) -> list[str]:
    """Name the hosts that serve a plan together; none where it is one alone."""
    return [str(row["host"]) for row in (plan.get("group") or {}).get("members", ())]


def make_head_only_error(plan: Mapping[str, Any], what: str) -> HostError:
    """Return the refusal of what only the head of a group can do."""
    group, host = plan["group"], get_head(plan)
    return HostError(
        f"this host is rank {group['rank']} of group {group['name']}, which {host} serves for: "
        f"{what} there",
        f"run the command for {host}",
    )
