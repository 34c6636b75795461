"""Where an instance runs: NUMA nodes, CPUs, and how many threads its kernels may spin on.

Decides: NUMA nodes, thread pools and instances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.node_kinds import list_other_nodes
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import Placement
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from kimi_prov.facts.host import Host, Node
    from kimi_prov.planner.findings import Findings

# With so few cores, vLLM's other threads share none of the pools' cores.
_SMALL_CORES = 4
# An instance is bound to one node where it takes at most this share of the node's memory.
_NODE_SHARE = 0.9


def place_gpu_workers(host: Host, gpus: int, required_bytes: int, *, can_bind: bool) -> Placement:
    """Place the workers of `gpus` GPUs. `can_bind`: the engine binds each to its GPU's node.

    numactl around the engine cannot bind each worker to another node. So where the engine does not
    bind them, all workers are bound to one node if every GPU is near it and it holds
    `required_bytes`; otherwise their memory is interleaved over all nodes.
    """
    nodes = tuple(node.id for node in host.nodes)
    near = _find_gpu_nodes(host, gpus)
    cpus, threads = format_list(host.cpus), _choose_kernel_cores(host.primary)
    if len(nodes) < 2:
        return Placement((), nodes, cpus, threads, gpu_nodes=near)
    if can_bind:
        return Placement((), nodes, cpus, threads, gpu_nodes=near, binds_itself=True)
    if len(set(near)) == 1:
        node = next(node for node in host.nodes if node.id == near[0])
        if required_bytes <= count_usable_bytes(node):
            return replace(_bind_to_node(node), gpu_nodes=near)
    return Placement(_make_interleave(host), nodes, cpus, threads, gpu_nodes=near)


def _find_gpu_nodes(host: Host, gpus: int) -> tuple[int, ...]:
    """Return the node of each of the first `gpus` GPUs; empty unless all are known."""
    known = {node.id for node in host.nodes}
    nodes = tuple(node for node in host.gpu_nodes[:gpus] if node in known)
    return tuple(node for node in nodes if node is not None) if len(nodes) == gpus else ()


def place_beside_pools(host: Host, experts_bytes: int, width: int, findings: Findings) -> Placement:
    """Place vLLM beside kt-kernel's pools on a machine without GPUs.

    The pools take the first cores of their nodes and leave two free. vLLM's main thread spins while
    it waits, so the last core of the first node is its own. vLLM's other threads share the pools'
    cores on that node, where the pools' threads yield to them.
    """
    where = place_pools(host, experts_bytes, width, 0, findings)
    first = next((n for n in host.nodes if n.id == where.pools[0]), None)
    primary = first.primary if first else host.primary
    count = len(where.pools)
    shared = primary[: where.pool_threads // count] if len(primary) > _SMALL_CORES else ()
    one = f"{where.pools[0]}"
    return replace(
        where,
        numactl=("numactl", f"--cpunodebind={one}", f"--membind={one}")
        if count == 1
        else _make_interleave(host),
        cpus=format_list(first.cpus) if first and count == 1 else format_list(host.cpus),
        threads=",".join(filter(None, [format_list(primary[-1:]), format_list(shared)])),
    )


def place_engine(host: Host, required_bytes: int, findings: Findings) -> Placement:
    """Bind an engine to one node that holds it; else interleave its memory over all nodes.

    `required_bytes` is the engine's resident memory.
    """
    if not host.nodes:
        return Placement((), (), format_list(host.cpus), _choose_kernel_cores(host.primary))
    fitting = [n for n in host.nodes if required_bytes <= count_usable_bytes(n)]
    if fitting or len(host.nodes) == 1:
        node = max(fitting or host.nodes, key=lambda n: (len(n.primary), -n.id))
        _report_small_node(host, findings)
        return _bind_to_node(node)
    return place_over_nodes(host)


def place_over_nodes(host: Host) -> Placement:
    """Give an engine all nodes; memory that nobody binds is interleaved over them."""
    return Placement(
        _make_interleave(host),
        tuple(node.id for node in host.nodes),
        format_list(host.cpus),
        _choose_kernel_cores(host.primary),
    )


def list_copies(host: Host, engine_bytes: int, requests: int) -> list[int]:
    """List how many engines may share a machine without GPUs, each on its own NUMA node.

    `engine_bytes`: memory of one engine with the smallest cache. A single engine reads through one
    node's memory channels, or over the link between the sockets. `requests`: as many have work.
    """
    fitting = [n for n in host.nodes if engine_bytes <= count_usable_bytes(n)]
    most = min(len(fitting), requests, _count_available_bytes(host) // engine_bytes)
    return list(range(1, max(1, most) + 1))


def check_copies(host: Host, requested: int, engine_bytes: int, findings: Findings) -> int:
    """Return the number of engines that the inventory sets; one where there are not the nodes."""
    most = len(host.nodes)
    fitting = [n for n in host.nodes if engine_bytes <= count_usable_bytes(n)]
    if requested > max(1, most):
        findings.add(
            "numa.instances",
            observed=f"kimi_instances: {requested}, {most} node(s)",
            required="a node for each",
            fix=f"set kimi_instances to {max(1, most)} or less, or to auto",
        )
        return 1
    if requested > 1 and len(fitting) < requested:
        short = [n for n in choose_largest_nodes(host, requested) if n not in fitting]
        findings.add(
            "numa.node_memory",
            observed=", ".join(f"node {n.id}: {format_bytes(n.memory_bytes)}" for n in short),
            required=f"{format_bytes(engine_bytes)} within {_NODE_SHARE:.0%} of each of "
            f"{requested} nodes",
            fix="set kimi_instances to 1 or auto, or put more memory on these nodes",
        )
    return requested


def count_usable_bytes(node: Node) -> int:
    """Count the bytes of a node that an engine bound to it may take."""
    return int(node.memory_bytes * _NODE_SHARE)


def choose_largest_nodes(host: Host, count: int) -> list[Node]:
    """Choose the `count` nodes with the most memory, in order of their ids."""
    best = sorted(host.nodes, key=lambda n: (-n.memory_bytes, n.id))[:count]
    return sorted(best, key=lambda n: n.id)


def place_on_nodes(host: Host, count: int) -> tuple[Placement, ...]:
    """Bind each of `count` engines to a node of its own."""
    return tuple(_bind_to_node(node) for node in choose_largest_nodes(host, count))


def _count_available_bytes(host: Host) -> int:
    return host.memory_bytes - host.reserve_bytes


def _bind_to_node(node: Node) -> Placement:
    return Placement(
        ("numactl", f"--cpunodebind={node.id}", f"--membind={node.id}"),
        (node.id,),
        format_list(node.cpus),
        _choose_kernel_cores(node.primary),
    )


def place_pools(
    host: Host, experts_bytes: int, width: int, gpus: int, findings: Findings
) -> Placement:
    """Place kt-kernel's pools: one a node, threads on physical cores, memory bound strictly.

    Each pool gets a slice of every expert, so the number of pools has to divide `width`: of three
    nodes two are used, of six nodes four. Each node has to hold its share of `experts_bytes`. Where
    one does not, the plan reports it and uses no fewer nodes, whose shares would be larger.
    """
    used, share, short = _choose_slice_nodes(host, experts_bytes, width)
    nodes, most = host.nodes, max(1, len(used))
    # Where the whole memory is too small, the finding memory.host reports it.
    if short and host.memory_bytes >= experts_bytes:
        findings.add(
            "numa.node_memory",
            wording="share",
            observed=", ".join(f"node {n.id}: {format_bytes(n.memory_bytes)}" for n in short),
            required=f"{format_bytes(share)} on each of {most} node(s), bound strictly",
            fix="put equal memory on every socket, or set the firmware to fewer NUMA nodes"
            + (" (NPS1, SNC off)" if len(nodes) > host.sockets else ""),
            source=DEFINITIONS["numa.pools"].source,
        )
    if most < len(nodes):
        findings.add(
            "numa.pools",
            observed=f"{len(nodes)} nodes on {host.sockets} socket(s), {most} used",
            required=f"1, 2, 4 or 8 nodes (a number that divides {width})",
            fix="set the firmware to one node a socket (SNC off, NPS1)",
        )
    cores = min((len(n.primary) for n in used), default=0)
    # Spinning workers on every core made a step 2.4 to 6 times as long. Each GPU's process also
    # needs a core.
    left = max(2, -(-(gpus + 2) // max(1, most)))
    ids = tuple(sorted(n.id for n in used))
    return Placement(
        numactl=(),
        nodes=ids,
        cpus=format_list(host.cpus),
        threads="",
        pools=ids or (0,),
        pool_threads=max(1, cores - left) * max(1, most),
    )


def is_node_too_small(host: Host, experts_bytes: int, width: int) -> bool:
    """Whether a node cannot hold its slice of the experts, although the whole machine could."""
    return (
        bool(_choose_slice_nodes(host, experts_bytes, width)[2])
        and host.memory_bytes >= experts_bytes
    )


def count_pools(host: Host, width: int) -> int:
    """Count the nodes that get a pool: the most of 1, 2, 4 and 8 that divides an expert's width."""
    return max((n for n in (1, 2, 4, 8) if n <= len(host.nodes) and width % n == 0), default=1)


def _choose_slice_nodes(
    host: Host, experts_bytes: int, width: int
) -> tuple[list[Node], int, list[Node]]:
    """Return the nodes that get a slice, a slice's bytes, and the nodes that cannot hold it."""
    nodes = sorted(host.nodes, key=lambda n: (-n.memory_bytes, n.id))
    most = count_pools(host, width)
    used = _choose_spread_nodes(host, nodes, most)
    share = -(-experts_bytes // most)
    reserve = host.reserve_bytes // max(1, len(nodes))
    return used, share, [n for n in used if n.memory_bytes - reserve < share]


def _choose_spread_nodes(host: Host, nodes: list[Node], count: int) -> list[Node]:
    """Choose nodes evenly from all sockets, so that every socket's memory channels are used."""
    if count == len(nodes) or host.sockets < 2:
        return nodes[:count]
    ordered = sorted(nodes, key=lambda n: n.id)
    size = max(1, len(ordered) // host.sockets)
    sockets = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    dealt = [group[index] for index in range(size) for group in sockets if index < len(group)]
    return dealt[:count]


def _make_interleave(host: Host) -> tuple[str, ...]:
    """Spread memory over all nodes, but not over those of GPUs, HBM or an expander."""
    if not list_other_nodes(host.facts["numa"]["nodes"]):
        return ("numactl", "--interleave=all")
    return ("numactl", f"--interleave={format_list([node.id for node in host.nodes])}")


def _choose_kernel_cores(primary: tuple[int, ...]) -> str:
    """Return the kernels' cores: all but the first two (the first on a very small machine)."""
    left = 2 if len(primary) > 4 else 1
    return format_list(primary[left:] or primary)


def _report_small_node(host: Host, findings: Findings) -> None:
    """Report a virtual machine whose node sizes are not used, because they are too small."""
    if host.virtual and host.node_bytes < host.memory_bytes * 0.8:
        findings.add(
            "numa.node_size",
            observed=f"nodes {host.node_bytes >> 20} MiB, machine {host.memory_bytes >> 20} MiB",
            required="a virtual machine gets its memory as it is used",
        )
