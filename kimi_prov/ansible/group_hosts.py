"""The hosts of the inventory that serve one model together, and their facts of this run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.hosts.groups import GroupHosts, HostInput
from kimi_prov.planner.plan import find_refusals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALL = "kimi"


def find_group(variables: Mapping[str, Any], size: int) -> tuple[str, list[str]]:
    """Return the name and the hosts of a host's group, in the inventory's order.

    `variables` are the host's, `groups` among them. A group is one of the inventory with `size`
    hosts, all of them in `kimi`; else all of `kimi`. Raises UserError where there is none, or more
    than one.
    """
    host = str(variables["inventory_hostname"])
    groups: Mapping[str, list[str]] = variables["groups"]
    every = list(groups.get(_ALL) or ())
    inside = {
        name: list(hosts)
        for name, hosts in groups.items()
        if name not in ("all", "ungrouped", _ALL) and host in hosts and set(hosts) <= set(every)
    }
    fitting = {name: hosts for name, hosts in inside.items() if len(hosts) == size}
    if not fitting and len(every) == size:
        return _ALL, every
    if len({tuple(hosts) for hosts in fitting.values()}) == 1:
        return next(iter(fitting.items()))
    problem = f"host {host}: kimi_hosts_per_model is {size}, and "
    if fitting:
        raise UserError(
            f"{problem}it is in several groups of {size} hosts: {', '.join(fitting)}",
            fix="leave it in one of them",
        )
    sizes = {**inside, _ALL: every}
    shown = ", ".join(f"{name} has {len(hosts)}" for name, hosts in sizes.items())
    raise UserError(
        f"{problem}no group of the inventory that it is in has {size} hosts: {shown}",
        fix="make child groups of kimi, each with the hosts that serve one model together, the "
        "head first",
    )


def find_heads(
    groups: Mapping[str, Sequence[str]], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Name the head of each host that serves one model together with others.

    `known`: the variables of all hosts; empty where Ansible only checks the syntax.
    """
    every = set(groups.get(_ALL) or ())
    head_of: dict[str, str] = {}
    for name, hosts in groups.items():
        first = known.get(hosts[0], {}) if hosts else {}
        size = int(first.get("kimi_hosts_per_model") or 1)
        inside = set(hosts) <= every and name not in ("all", "ungrouped")
        if size > 1 and inside and len(hosts) == size:
            head_of |= {str(host): str(hosts[0]) for host in hosts}
    return head_of


def gather_hosts(group: tuple[str, list[str]], variables: Mapping[str, Any]) -> GroupHosts:
    """Return the facts of a group's hosts and their settings.

    Raises UserError that names the hosts which this run did not describe. Its exit code is that of
    a blocker unless --limit left them out: what those hosts failed at decides.
    """
    name, hosts = group
    known: Mapping[str, Mapping[str, Any]] = variables["hostvars"]
    lacking = [host for host in hosts if not known[host].get("kimi_shared_settings")]
    if lacking:
        left_out = not set(lacking) <= set(variables["ansible_play_hosts_all"])
        raise UserError(
            f"{', '.join(lacking)} of group {name} {'was' if len(lacking) == 1 else 'were'} not "
            f"described: {'left out by --limit' if left_out else 'not reached, or refused'}; a "
            "group is planned as a whole",
            fix="run the command for all hosts of the group, when all of them answer",
            exit_code=ExitCode.BAD_INPUT if left_out else ExitCode.BLOCKED,
        )
    inputs = [_read_host(host, known[host]) for host in hosts]
    return GroupHosts(name, str(variables["inventory_hostname"]), tuple(inputs))


def _read_host(host: str, variables: Mapping[str, Any]) -> HostInput:
    def text(name: str) -> str | None:
        value = variables.get(name)
        return str(value) if value else None

    return HostInput(
        host,
        variables["kimi_facts"],
        variables["kimi_shared_settings"],
        text("ansible_host") or host,
        text("kimi_group_address"),
    )


def find_refused_peers(
    group: Mapping[str, Any], own: str, known: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the other hosts of a plan's group that this run will not provision, and why."""
    refused = []
    for host in (member["host"] for member in group["members"] if member["host"] != own):
        plan = known[host].get("kimi_plan")
        if not plan:
            refused.append(f"{host} has no plan")
        elif blockers := [row["id"] for row in find_refusals(plan)]:
            refused.append(f"{host} is refused ({', '.join(blockers)})")
    return refused
