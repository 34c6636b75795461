"""Facts: addresses, ports, cards and the firewall."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Required, Rule, Whole


class NetworkFacts(TypedDict, total=False):
    """Addresses, ports and cards."""

    addresses: list[str]
    default_ipv6: bool | None
    listening: list[ListeningPort]
    interfaces: list[InterfaceFacts] | None
    """Interfaces with a device or an address."""
    rdma: list[RdmaFacts] | None
    """Ports of InfiniBand and RoCE devices."""


class ListeningPort(TypedDict, total=False):
    """A TCP port that a program uses."""

    port: Required[Whole]
    address: str
    process: str | None
    unit: str | None


class InterfaceFacts(TypedDict, total=False):
    """A network interface."""

    name: Required[Annotated[str, Rule(pattern=r"^[A-Za-z0-9._-]{1,15}$")]]
    state: str | None
    speed_bits_per_s: Whole | None
    """null where no card is behind it: a virtual interface reports a speed without a meaning (veth
    always 10 Gbit/s)."""
    mtu: Whole | None
    addresses: list[Annotated[str, Rule(pattern=r"^[0-9a-fA-F:.]{2,45}/[0-9]{1,3}$")]]
    numa_node: Whole | None
    driver: str | None


class RdmaFacts(TypedDict, total=False):
    """A port of an RDMA device."""

    device: Required[Annotated[str, Rule(pattern=r"^[A-Za-z0-9._-]{1,63}$")]]
    port: Required[Annotated[int, Rule(minimum=0, maximum=255)]]
    link_layer: str | None
    state: str | None
    speed_bits_per_s: Whole | None
    gid_index: Whole | None
    """Of RoCE: the GID to use, of version 2 and of an IPv4 address where there is one."""
    gid_type: str | None
    netdev: Annotated[str, Rule(pattern=r"^[A-Za-z0-9._-]{1,15}$")] | None
    numa_node: Whole | None
    gpus: list[RdmaToGpu]


BusPath = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]


class RdmaToGpu(TypedDict):
    """The path from the device to a GPU."""

    index: Whole
    path: BusPath
    """In the words of `nvidia-smi topo -m`."""


FirewallState = Literal["active", "inactive", "absent"]


class FirewallFacts(TypedDict, total=False):
    """The firewall of the machine."""

    nft: bool | None
    ufw: FirewallState | None
    firewalld: FirewallState | None
    redirected: list[RedirectedPort] | None
    """TCP ports that rules of iptables redirect, as to containers; null without iptables or
    root."""


class RedirectedPort(TypedDict):
    """A port that rules of iptables redirect."""

    port: Whole
    address: NotRequired[str | None]
    to: NotRequired[str]
