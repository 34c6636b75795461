"""The plans of an inventory's hosts as targets of a check: a group that serves together is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Plan = dict[str, Any]


def joined(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, Plan]:
    """Give each target's plan by its name: a host's own, or the head's by the name of its group.

    What only another host of the group has among its findings stands in the group's, with its name.
    """
    found: dict[str, Plan] = {}
    for host, plan in plans.items():
        group = plan.get("group")
        if not group:
            found[host] = dict(plan)
        elif group["rank"] == 0:
            found[group["name"]] = {**plan, "findings": _findings(plan, plans)}
        elif group["members"][0]["host"] not in plans:
            # Its head was not reached: the rank alone says what it can.
            found[host] = dict(plan)
    return found


def head(name: str, plan: Mapping[str, Any]) -> str:
    """Name the host whose facts stand for a target."""
    group = plan.get("group")
    if group and group["rank"] == 0:
        return str(group["members"][0]["host"])
    return name


def _findings(
    plan: Mapping[str, Any], plans: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    rows = [dict(row) for row in plan["findings"]]
    known = {(row["id"], row["observed"]) for row in rows}
    for member in plan["group"]["members"][1:]:
        for row in plans.get(member["host"], {"findings": ()})["findings"]:
            if (row["id"], row["observed"]) not in known and row["severity"] != "pass":
                known.add((row["id"], row["observed"]))
                rows.append({**row, "observed": f"{member['host']}: {row['observed']}"})
    return rows
