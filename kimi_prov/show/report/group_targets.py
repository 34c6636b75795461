"""The plans of an inventory's hosts as targets of a check: a group that serves together is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan


def join_groups(plans: Mapping[str, MachinePlan]) -> dict[str, MachinePlan]:
    """Return each target's plan by name: a host's own, or for a group the plan of its head.

    A finding that only another host of the group has is added to the group's, with the host's name.
    """
    found: dict[str, MachinePlan] = {}
    for host, plan in plans.items():
        group = plan.get("group")
        if not group:
            found[host] = plan
        elif group["rank"] == 0:
            others = [row["host"] for row in group["members"][1:]]
            found[group["name"]] = {**plan, "findings": _collect_findings(plan, others, plans)}
        elif group["members"][0]["host"] not in plans:
            # The head was not reached: use the plan of a rank.
            found[host] = plan
    return found


def find_head(name: str, plan: MachinePlan) -> str:
    """Name the host whose facts stand for a target."""
    group = plan.get("group")
    if group and group["rank"] == 0:
        return str(group["members"][0]["host"])
    return name


def _collect_findings(
    plan: MachinePlan, others: list[str], plans: Mapping[str, MachinePlan]
) -> list[Finding]:
    rows = [*plan["findings"]]
    known = {(row["id"], row["observed"]) for row in rows}
    for host in others:
        for row in plans[host]["findings"] if host in plans else ():
            if (row["id"], row["observed"]) not in known and row["severity"] != "pass":
                known.add((row["id"], row["observed"]))
                rows.append({**row, "observed": f"{host}: {row['observed']}"})
    return rows
