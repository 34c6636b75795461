"""Findings about the network between hosts that serve one model together."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "group.address",
        title="The hosts of the group have no addresses on one network",
        severities=("blocker", "warning"),
        source="every process of the group reaches every other: Gloo and NCCL connect all to all",
        remedy="setting",
        concerns="deployment",
        titles={"warning": "The hosts of the group reach each other through a router"},
    ),
    Definition(
        "group.gid",
        title="RoCE has no GID of version 2",
        severities=("warning",),
        source="packets of RoCE v1 leave no network and carry no mark of IP for lossless queues; "
        "NCCL looks for version 2 (NCCL_IB_ROCE_VERSION_NUM)",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "group.link",
        title="The network between the hosts of the group is slower than it could be",
        severities=("blocker", "warning"),
        source="/sys/class/net/*/operstate and speed: all wait for the slowest at each layer",
        remedy="software",
        concerns="deployment",
        titles={"blocker": "A host's interface on the network of the group is down"},
    ),
    Definition(
        "group.mtu",
        title="The hosts of the group have different MTUs on their network",
        severities=("warning",),
        source="/sys/class/net/*/mtu: a large packet that a peer or a switch does not take is "
        "lost, and a connection hangs after it was made",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "group.rdma",
        title="The GPUs of the group have neither InfiniBand nor RoCE between their hosts",
        severities=("blocker", "warning"),
        source="tensor parallelism sums up over all ranks twice a layer, pipeline parallelism "
        "hands each token on once a host; over TCP the processors copy each byte",
        remedy="depends",
        titles={"blocker": "Tensor parallelism over hosts needs InfiniBand or RoCE"},
    ),
)
