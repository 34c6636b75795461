"""Several hosts that serve one model together: their settings, addresses, flags and environment."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import ports, unit_names
from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import Host, read_host
from kimi_prov.planner.decisions import InstanceSlot
from kimi_prov.planner.hosts import networks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan.engine import ModelPlan
    from kimi_prov.contract.documents.plan.group import GroupPlan
    from kimi_prov.contract.documents.plan.service import BackendPlan
    from kimi_prov.planner.decisions import EngineChoice
    from kimi_prov.planner.settings.parsing import Settings

# Settings that all hosts of a group need with the same value; all others are each host's own.
SHARED_SETTINGS = (
    "model",
    "context",
    "concurrency",
    "optimise",
    "choose_anew",
    "served_names",
    "weights_source",
    "weights_format",
    "kv_dtype",
    "engine",
    "engine_version",
    "engine_args",
    "engine_stand_in",
    "workload",
    "cache_offload",
    "speculative",
    "speculative_model",
    "speculative_tokens",
    "hosts_per_model",
    "group_port",
)
# Settings of the head that count for its whole group.
HEAD_SETTINGS = ("monitor_local", "idle_stop")
# Flags that differ between the hosts of a group; all others are the same on each.
_OWN_FLAGS = ("node-rank", "headless")


@dataclass(frozen=True)
class HostInput:
    """One host of a group as input: its name, facts, shared settings and addresses.

    `address`: where Ansible reaches it; `group_address`: kimi_group_address, None where not set.
    """

    host: str
    facts: Facts
    shared: Mapping[str, Any]
    address: str | None = None
    group_address: str | None = None


@dataclass(frozen=True)
class GroupHosts:
    """All hosts of a group as input, in order of their rank; `own` is the host that is planned."""

    name: str
    own: str
    hosts: tuple[HostInput, ...]

    def group(self, catalogue: Catalogue) -> Group:
        """Read the hosts' facts."""
        return read_group(self, catalogue)

    def with_facts(self, change: Callable[[Facts], Facts]) -> GroupHosts:
        """Return the same hosts with the facts that `change` makes from theirs."""
        return replace(
            self, hosts=tuple(replace(row, facts=change(row.facts)) for row in self.hosts)
        )


def make_equal_group(facts: Facts, settings: Settings) -> GroupHosts | None:
    """Make a group of hosts that all have these facts; None where one host serves alone."""
    if settings.hosts_per_model == 1:
        return None
    hosts = tuple(
        HostInput(f"host-{rank + 1}", facts, select_shared_settings(settings))
        for rank in range(settings.hosts_per_model)
    )
    return GroupHosts("group", hosts[0].host, hosts)


@dataclass(frozen=True)
class Member:
    """One host of a group: its rank, and its address on the group's network, None if not found."""

    name: str
    rank: int
    host: Host
    shared: Mapping[str, Any]
    address: str | None


@dataclass(frozen=True)
class Group:
    """Hosts in order of their rank, the head first; `rank` is that of the planned host."""

    name: str
    members: tuple[Member, ...]
    rank: int

    @property
    def planned(self) -> Member:
        """The host that is planned."""
        return self.members[self.rank]

    @property
    def head(self) -> Member:
        """The host with the API's port."""
        return self.members[0]

    @property
    def peers(self) -> list[Member]:
        """The other hosts, in order of their rank."""
        return [member for member in self.members if member.rank != self.rank]


def select_shared_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of a host that the others of its group have to know."""
    return {name: getattr(settings, name) for name in (*SHARED_SETTINGS, *HEAD_SETTINGS)}


def read_group(hosts_given: GroupHosts, catalogue: Catalogue) -> Group:
    """Read the hosts' facts, and find the address of each."""
    inputs = hosts_given.hosts
    hosts = [read_host(gpu_names.add_known_gpus(row.facts, catalogue), catalogue) for row in inputs]
    members = tuple(
        Member(row.host, rank, host, row.shared, _choose_address(row, host))
        for rank, (row, host) in enumerate(zip(inputs, hosts, strict=True))
    )
    ranks = [row.host for row in inputs]
    return Group(hosts_given.name, members, ranks.index(hosts_given.own))


def _choose_address(row: HostInput, host: Host) -> str | None:
    """Choose a host's address: as set, else as Ansible reaches it, else its only one."""
    known = [str(address) for address in host.facts["network"].get("addresses") or ()]
    if row.group_address is not None:
        return row.group_address
    if row.address in known:
        return row.address
    v4 = [address for address in known if ":" not in address]
    only = v4 or known
    return only[0] if len(only) == 1 else None


def limit_to_smallest(host: Host, group: Group | None) -> Host:
    """Return the host with the memory of the smallest of its group, because shares are equal."""
    if group is None:
        return host
    hosts = [member.host for member in group.members]
    gpus = min((min(h.gpu_bytes) for h in hosts if h.gpu_bytes), default=0)
    return replace(
        host,
        gpu_bytes=tuple(min(size, gpus) for size in host.gpu_bytes),
        memory_bytes=min(h.memory_bytes for h in hosts),
    )


def adjust_settings(settings: Settings, group: Group | None) -> Settings:
    """Return the settings of a host of a group; one that is not the head serves no clients.

    It exports metrics as any host does, and a head with its own monitoring reads them. Only the
    head stops a group that is idle.
    """
    if group is None or group.rank == 0:
        return settings
    watched = group.head.shared.get("monitor_local")
    readers = (
        networks.list_interface_addresses(group.head.host, group.head.address) if watched else []
    )
    single = [str(ipaddress.ip_network(address)) for address in readers]
    return replace(
        settings,
        web_ui=False,
        tls="self-signed",
        tls_cert_file=None,
        tls_key_file=None,
        api_keys_file=None,
        web_admin_file=None,
        allowed_networks=[],
        metrics_networks=list(dict.fromkeys([*settings.metrics_networks, *single])),
        monitor_local=False,
        idle_stop=None,
    )


def make_flags(group: Group, settings: Settings, *, on_cpu: bool) -> dict[str, Any]:
    """Return vLLM's flags of one host of a group (vLLM's own multi-node mode, without Ray)."""
    flags: dict[str, Any] = {
        "nnodes": len(group.members),
        "node-rank": group.rank,
        "master-addr": group.head.address or "unknown",
        "master-port": ports.find_master_port(settings.group_port),
    }
    if on_cpu:
        # With GPUs vLLM chooses it for several nodes; the CPU build needs the flag.
        flags["distributed-executor-backend"] = "mp"
    if group.rank:
        flags["headless"] = True
    return flags


def make_environment(group: Group, settings: Settings) -> dict[str, str]:
    """Return the variables from which vLLM, Gloo and NCCL read the group's network."""
    variables = {
        "VLLM_HOST_IP": group.planned.address or "unknown",
        "VLLM_PORT": str(ports.find_engine_ports(settings.group_port)[0]),
    }
    interface = find_own_interface(group)
    if interface:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        variables |= dict.fromkeys(names, interface)
        variables["NCCL_SOCKET_FAMILY"] = (
            "AF_INET6" if ":" in (group.planned.address or "") else "AF_INET"
        )
    rdma = networks.make_rdma_document(group.planned.host)
    if rdma:
        # After = NCCL compares whole names, so that mlx5_1 does not match mlx5_10.
        variables["NCCL_IB_HCA"] = f"={','.join(rdma['devices'])}"
        if rdma["gid_index"] is not None:
            variables["NCCL_IB_GID_INDEX"] = str(rdma["gid_index"])
    return variables


def find_own_interface(group: Group) -> str | None:
    """Name the interface that has the planned host's address; None where it is not known."""
    interface = networks.find_interface(group.planned.host, group.planned.address)
    return interface.name if interface else None


def make_document(group: Group | None, settings: Settings, digest: str) -> GroupPlan | None:
    """Give the plan's `group`; None for a host that serves its model alone."""
    if group is None:
        return None
    first, last = ports.find_engine_ports(settings.group_port)
    return {
        "name": group.name,
        "size": len(group.members),
        "rank": group.rank,
        "members": [
            {"host": member.name, "rank": member.rank, "address": member.address}
            for member in group.members
        ],
        "address": group.planned.address,
        "interface": find_own_interface(group),
        "control_port": settings.group_port,
        "master_port": ports.find_master_port(settings.group_port),
        "first_port": first,
        "last_port": last,
        "peers": [member.address for member in group.peers if member.address],
        "own_addresses": networks.list_interface_addresses(
            group.planned.host, group.planned.address
        ),
        "peer_addresses": [
            address
            for member in group.peers
            for address in networks.list_interface_addresses(member.host, member.address)
        ],
        "rdma": networks.make_rdma_document(group.planned.host),
        "digest": digest,
    }


def compute_digest(
    choice: EngineChoice, model: ModelPlan, flags: Mapping[str, Any], names: Iterable[str]
) -> str:
    """Compute the digest of all that must be equal on the hosts before their engines start."""
    equal = {
        "environment": choice.env_name,
        "locks": choice.locks,
        "model": {
            "name": model["name"],
            "revision": model["revision"],
            "weights_format": model["weights_format"],
            "kv_dtype": model["kv_dtype"],
        },
        "names": list(names),
        "flags": {name: value for name, value in flags.items() if name not in _OWN_FLAGS},
    }
    text = json.dumps(equal, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_slots(
    group: Group | None,
    settings: Settings,
    backends: Sequence[BackendPlan],
    *,
    on_cpu: bool,
) -> list[InstanceSlot]:
    """Return unit, port, flags and variables of each instance of a host."""
    if group is None:
        return [
            InstanceSlot(
                row["index"], unit_names.build_serve_name(row["index"]), row["port"], {}, {}
            )
            for row in backends
        ]
    unit = unit_names.RANK if group.rank else unit_names.build_serve_name(0)
    port = backends[0]["port"] if backends else None
    own = make_flags(group, settings, on_cpu=on_cpu)
    return [InstanceSlot(0, unit, port, own, make_environment(group, settings))]
