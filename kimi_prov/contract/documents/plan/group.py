"""Plan: hosts that serve one model together."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Count, Rule


class GroupPlan(TypedDict):
    """The hosts that serve the model together; null for a single host."""

    name: str
    size: Annotated[int, Rule(minimum=2)]
    rank: Count
    """0 is the head, which has the API's port."""
    members: list[GroupMember]
    address: str | None
    interface: str | None
    control_port: int
    """The port of the supervisors, on the head."""
    master_port: int
    """The port at which the engines find each other, on the head."""
    first_port: int
    """The first further port of an engine, on each host."""
    last_port: int
    peers: list[str]
    """Addresses of the other hosts."""
    own_addresses: list[str]
    """All addresses of the host's interface on the group's network: it reaches itself by them."""
    peer_addresses: list[str]
    """All addresses of the other hosts' interfaces there: each may use any of its own."""
    rdma: GroupRdma | None
    digest: str
    """SHA-256 of what has to be equal on all hosts before they start."""


class GroupMember(TypedDict):
    """A host of the group."""

    host: str
    rank: Count
    address: str | None


class GroupRdma(TypedDict):
    """RDMA between them."""

    kind: Literal["infiniband", "roce"]
    devices: list[str]
    gid_index: int | None
