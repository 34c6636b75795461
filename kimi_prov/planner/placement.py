"""Where an instance runs: NUMA nodes, CPUs, and how many threads its kernels may spin on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.target.machine import format_list

if TYPE_CHECKING:
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.host import Host

# An instance is bound to one node where it takes at most this share of it.
_NODE_SHARE = 0.9
_SOURCE = "spinning workers on every core cost 2.4 to 6 times (measured with kt-kernel and vLLM)"


@dataclass(frozen=True)
class Placement:
    """`threads`: CPUs that the kernels are pinned to; `cpus`: all that the unit may use."""

    numactl: tuple[str, ...]
    nodes: tuple[int, ...]
    cpus: str
    threads: str


def place(host: Host, required_bytes: int, findings: Findings) -> Placement:
    """Bind to one node where all fits there; else spread the pages evenly over all nodes.

    `required_bytes` is the engine's resident memory.
    """
    if host.gpu_bytes or not host.nodes:
        # An outer numactl cannot bind each tensor-parallel worker to its own node.
        nodes = tuple(node.id for node in host.nodes)
        numactl = ("numactl", "--interleave=all") if len(nodes) > 1 else ()
        return Placement(numactl, nodes, format_list(host.cpus), _threads(host.primary))
    fitting = [n for n in host.nodes if required_bytes <= n.memory_bytes * _NODE_SHARE]
    if fitting or len(host.nodes) == 1:
        node = max(fitting or host.nodes, key=lambda n: (len(n.primary), -n.id))
        _small_node(host, findings)
        return Placement(
            ("numactl", f"--cpunodebind={node.id}", f"--membind={node.id}"),
            (node.id,),
            format_list(node.cpus),
            _threads(node.primary),
        )
    every = tuple(node.id for node in host.nodes)
    return Placement(
        ("numactl", "--interleave=all"), every, format_list(host.cpus), _threads(host.primary)
    )


def _threads(primary: tuple[int, ...]) -> str:
    """Cores for the kernels: the last ones, with two left free (one on a very small machine)."""
    left = 2 if len(primary) > 4 else 1
    return format_list(primary[left:] or primary)


def _small_node(host: Host, findings: Findings) -> None:
    """Say where a virtual machine's node sizes were not believed."""
    shown = sum(int(n.get("memory_total_bytes") or 0) for n in host.facts["numa"]["nodes"])
    if host.virtual and shown < host.memory_bytes * 0.8:
        findings.info(
            "numa.node_size",
            "The NUMA nodes show less memory than the machine has; the total was trusted",
            observed=f"nodes {shown >> 20} MiB, machine {host.memory_bytes >> 20} MiB",
            required="a virtual machine gets its memory as it is used",
            source="seen on a virtual machine with 125 GiB and one node of 4443 MB",
        )
