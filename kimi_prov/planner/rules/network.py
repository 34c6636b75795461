"""Rules about the network between hosts that serve one model together.

Each is a function of the members of a group; a host whose network was not probed gives no finding.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import TYPE_CHECKING

from kimi_prov.planner.hosts.networks import ROCE_V2, find_interface, find_rdma_devices
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.throughput.hosts import EXCHANGE_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.facts.host import Host, Interface
    from kimi_prov.planner.hosts.groups import Member

_BF16_BYTES = 2
# A /31 or /32, as in a routed fabric and some clouds: peers are never in such a network.
_POINT_TO_POINT = 2


@register_rule("group.address")
def _check_plan_addresses(context: PlanContext) -> Iterator[RuleResult]:
    if context.group:
        yield from check_addresses(context.group.members)


def check_addresses(members: Sequence[Member]) -> Iterator[RuleResult]:
    """Report members without an address, with a foreign address, or on other networks."""
    known = [member for member in members if member.host.interfaces]
    if len(known) < len(members) or _is_one_for_all(members):
        return
    set_it = "set kimi_group_address of each host to its address on the network that they share"
    for member in members:
        if member.address is None:
            own = [str(a.ip) for row in member.host.interfaces for a in row.addresses]
            yield RuleResult(
                severity="blocker",
                observed=f"{member.name} has {', '.join(own) or 'no address'}",
                required="one address, or one that is named",
                fix=set_it,
            )
        elif find_interface(member.host, member.address) is None:
            yield RuleResult(
                severity="blocker",
                observed=f"no interface of {member.name} has {member.address}",
                required="an address of the host itself",
                fix=set_it,
            )
    seen = {
        m.name: a
        for m in members
        if (row := find_interface(m.host, m.address)) is not None
        for a in row.addresses
        if str(a.ip) == _parse_address(m.address)
    }
    if len(seen) < len(members):
        return
    shown = ", ".join(f"{name}: {interface_address}" for name, interface_address in seen.items())
    twice = [str(ip) for ip, many in Counter(a.ip for a in seen.values()).items() if many > 1]
    versions = {interface_address.version for interface_address in seen.values()}
    routed = [a for a in seen.values() if a.network.num_addresses <= _POINT_TO_POINT]
    if twice or len(versions) > 1:
        yield RuleResult(
            severity="blocker",
            observed=shown,
            required="an address of its own for each host, all of IPv4 or all of IPv6",
            fix=set_it,
        )
    elif len({interface_address.network for interface_address in seen.values()}) > 1:
        yield RuleResult(
            severity="warning" if len(routed) == len(seen) else "blocker",
            observed=shown,
            required="addresses of one network"
            + (": a network of its own for each host is routed" if routed else ""),
            fix="see that a router leads from each to the others; verify measures the way"
            if len(routed) == len(seen)
            else set_it,
        )


def _is_one_for_all(members: Sequence[Member]) -> bool:
    """Whether all hosts of the group have one machine's facts, as in a check of one machine."""
    return all(member.host.facts == members[0].host.facts for member in members)


def _parse_address(text: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(text or ""))
    except ValueError:
        return None


def _find_interfaces(members: Sequence[Member]) -> dict[str, Interface]:
    """Return the known interface of each member on the group's network."""
    interfaces = {member.name: find_interface(member.host, member.address) for member in members}
    return {name: row for name, row in interfaces.items() if row is not None}


@register_rule("group.mtu")
def _check_plan_mtu(context: PlanContext) -> Iterator[RuleResult]:
    if context.group:
        yield from check_mtu(context.group.members)


def check_mtu(members: Sequence[Member]) -> Iterator[RuleResult]:
    """Report MTUs that differ between members."""
    links = {name: row for name, row in _find_interfaces(members).items() if row.mtu}
    if len({row.mtu for row in links.values()}) > 1:
        least = min(row.mtu or 0 for row in links.values())
        yield RuleResult(
            observed=", ".join(f"{name}: {row.name} {row.mtu}" for name, row in links.items()),
            required="one MTU on all hosts, and on the switches between them",
            fix=f"set one MTU on all: {least} works without the switches' help",
        )


@register_rule("group.link")
def _check_plan_links(context: PlanContext) -> Iterator[RuleResult]:
    if context.group:
        yield from check_links(context.group.members)


def check_links(members: Sequence[Member]) -> Iterator[RuleResult]:
    """Report interfaces that are down, and those slower than their peers'."""
    links = _find_interfaces(members)
    for name, row in links.items():
        if row.down:
            yield RuleResult(
                severity="blocker",
                observed=f"{name}: {row.name} is {row.state}",
                required="up",
                fix=f"ip link set {row.name} up; if it stays down, look for cable, transceiver "
                "and the switch's port",
            )
    speeds = {name: row.speed for name, row in links.items() if row.speed}
    yield from _check_slower_links(speeds, {name: row.name for name, row in links.items()})
    fabric = {m.name: find_rdma_devices(m.host) for m in members}
    rates = {name: min(p.speed or 0 for p in ports) for name, ports in fabric.items() if ports}
    named = {name: ", ".join(p.device for p in ports) for name, ports in fabric.items()}
    yield from _check_slower_links({name: rate for name, rate in rates.items() if rate}, named)


def _check_slower_links(speeds: dict[str, int], names: dict[str, str]) -> Iterator[RuleResult]:
    best = max(speeds.values(), default=0)
    for name, speed in speeds.items():
        if speed < best:
            yield RuleResult(
                severity="warning",
                observed=f"{name}: {names[name]} at {_format_gbit(speed)}",
                required=f"{_format_gbit(best)}, as its peers have",
                fix="look for a cable, transceiver or port of the switch that negotiated less: "
                "ethtool, ibstat",
            )


@register_rule("group.rdma")
def _check_plan_rdma(context: PlanContext) -> Iterator[RuleResult]:
    gpu, here = context.budget.gpu, len(context.host.gpu_bytes)
    if context.group is None or gpu is None:
        return
    crosses = gpu.ranks > here or (gpu.expert_parallel and gpu.ranks * gpu.data > here)
    shape = context.model.architecture
    yield from check_rdma(
        context.group.members, shape.layers, shape.hidden, tensor_parallel=crosses
    )


def check_rdma(
    members: Sequence[Member], layers: int, hidden: int, *, tensor_parallel: bool
) -> Iterator[RuleResult]:
    """Report GPUs whose hosts only have TCP between them, and the cost of that.

    `tensor_parallel`: ranks of one layer are on several hosts, or its experts are.
    """
    without = [m.name for m in members if _has_tcp_alone(m.host)]
    if not without:
        return
    sums = 2 * layers
    observed = f"no active port of InfiniBand or RoCE on {', '.join(without)}"
    if tensor_parallel:
        yield RuleResult(
            severity="blocker",
            observed=f"{observed}; each token takes {sums} sums over all hosts, one after the "
            f"other: {sums * EXCHANGE_US['ethernet'] / 1000:.0f} ms and more over TCP (estimated)",
            required="InfiniBand or RoCE on every host, or nothing but a pipeline between hosts",
            fix="remove tensor, data and expert parallel sizes from kimi_engine_args: tensor "
            "parallelism stays inside the hosts then, and a pipeline goes across",
        )
    else:
        handed = hidden * _BF16_BYTES * (len(members) - 1)
        yield RuleResult(
            severity="warning",
            observed=f"{observed}; a pipeline hands on {handed / 1000:.0f} kB a token over TCP: "
            "answers hardly wait for it, long prompts do",
            required="InfiniBand or RoCE on every host",
            fix="use it as it is, or install InfiniBand or RoCE cards and their driver "
            "(ibstat, rdma link)",
        )


def _has_tcp_alone(host: Host) -> bool:
    """Whether a host has no RDMA, by its sheet or by a probe."""
    group = host.facts.get("group")
    if group and group["link"]:
        return group["link"]["kind"] == "ethernet"
    return host.network_known and not find_rdma_devices(host)


@register_rule("group.gid")
def _check_plan_gids(context: PlanContext) -> Iterator[RuleResult]:
    if context.group and context.budget.gpu:
        yield from check_gids(context.group.members)


def check_gids(members: Sequence[Member]) -> Iterator[RuleResult]:
    """Report ports of RoCE without a GID of version 2."""
    for member in members:
        for port in find_rdma_devices(member.host):
            if port.kind == "roce" and port.gid_type != ROCE_V2:
                yield RuleResult(
                    observed=f"{member.name}: {port.device} port {port.port}"
                    + (f" on {port.netdev}" if port.netdev else "")
                    + f" has {port.gid_type or 'no GID'}",
                    required=ROCE_V2,
                    fix=f"give {port.netdev or 'its interface'} an address, and see that the "
                    "driver makes GIDs of version 2: rdma link",
                )


def _format_gbit(speed: int) -> str:
    return f"{speed / 1e9:g} Gbit/s"
