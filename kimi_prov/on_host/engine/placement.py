"""What of the planned placement is possible in a job or a pod with less than the planned machine.

Its cgroup may hide NUMA nodes and processors, and only there is the address known by which other
nodes are reached. Each function adds to `notes` what differs from the plan.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import socket
import struct
from typing import TYPE_CHECKING

from kimi_prov.contract.arguments import remove_flags
from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NUMA_FLAGS = ("--numa-bind", "--numa-bind-nodes")
_POOL_NODES, _POOL_THREADS = "--kt-numa-nodes", "--kt-cpuinfer"
# Cores that kt-kernel's spinning threads leave to others.
_LEFT = 2
_SIOCGIFADDR = 0x8915


def find_hidden_nodes(planned: Sequence[int]) -> list[int]:
    """Return the NUMA nodes of the plan whose memory this process may not use."""
    status = read_text("/proc/self/status")
    rows = [line for line in status.splitlines() if line.startswith("Mems_allowed_list:")]
    allowed = parse_list(rows[0].partition(":")[2].strip()) if rows else planned
    return [node for node in planned if node not in allowed]


def remove_hidden_binding(
    arguments: list[str], hidden: list[int], notes: list[str], advice: str = ""
) -> list[str]:
    """Leave out the flags that bind workers to nodes that the cgroup hides."""
    if not hidden or _NUMA_FLAGS[0] not in arguments:
        return list(arguments)
    notes.append(
        f"the cgroup hides NUMA nodes {format_list(hidden)}: workers are not bound to the nodes of "
        f"their GPUs{'; ' if advice else ''}{advice}"
    )
    return remove_flags(arguments, _NUMA_FLAGS)


def build_numactl(wanted: list[str], hidden: list[int], notes: list[str]) -> list[str]:
    """Return the words before the engine's command; none where they are not possible."""
    if not wanted:
        return []
    words = " ".join(wanted)
    program = shutil.which("numactl")
    if program is None:
        notes.append(f"numactl is not on this node: memory is not placed by {words}")
        return []
    named = any("=" in word and not word.endswith("=all") for word in wanted)
    if hidden and named:
        notes.append(
            f"the cgroup hides NUMA nodes {format_list(hidden)}: memory is not placed by {words}"
        )
        return []
    # A container's filter of system calls may refuse numactl's calls; then the engine would not
    # start.
    tried = run(program, *wanted, "true")
    if tried.returncode != 0:
        notes.append(
            f"numactl {words} is refused here ({tried.stderr.strip()[-200:]}): memory is not placed"
        )
        return []
    return [program, *wanted]


def choose_threads(
    environment: Mapping[str, str], allowed: Sequence[int], count: int, notes: list[str]
) -> dict[str, str]:
    """Return the processors of an engine without GPUs where it does not have the planned ones.

    `allowed`: the processors that it may use; `count`: the CPU time that it has, in processors.
    """
    planned = environment.get(_BIND)
    if not planned or planned == "auto":
        return {}
    wanted = parse_list(planned)
    if set(wanted) <= set(allowed) and len(wanted) <= count:
        return {}
    kept = [cpu for cpu in allowed if cpu in wanted] or list(allowed)
    more = [cpu for cpu in allowed if cpu not in kept]
    used = sorted([*kept, *more][: min(count, len(wanted))])
    notes.append(
        f"processors {format_list(list(allowed))} may be used, with the time of {count}, not the "
        f"planned {planned}: {format_list(used)} are used"
    )
    return {_BIND: format_list(used)}


def fit_pools(arguments: list[str], count: int, gpus: int, notes: list[str]) -> list[str]:
    """Return kt-kernel's arguments with no more threads than there are cores and time for.

    `count`: the processors' time. Its threads spin, so two cores of each pool's, or one for each
    GPU's process and two more, are left to others, as the planner leaves them.
    """
    nodes = _list_flag(arguments, _POOL_NODES)
    planned = _list_flag(arguments, _POOL_THREADS)
    if not nodes or not planned:
        return arguments
    pools, threads = len(nodes), planned[0]
    beside = max(_LEFT, -(-(gpus + _LEFT) // pools))
    seen = [_count_cores(node, list_available_cpus()) for node in nodes]
    cores = min(filter(None, seen), default=threads)
    most = min(threads // pools, cores - beside, (count - gpus - _LEFT) // pools)
    if most >= threads // pools:
        return arguments
    fitted = max(1, most) * pools
    notes.append(
        f"kt-kernel's threads are {fitted} and not the planned {threads}: the container or job has "
        f"{cores} cores of a NUMA node and the time of {count} processors; answers come slower"
    )
    at = arguments.index(_POOL_THREADS) + 1
    return [*arguments[:at], str(fitted), *arguments[at + 1 :]]


def explain_hidden_pools(arguments: Sequence[str]) -> str:
    """Return why kt-kernel's pools cannot be where they are planned; empty where they can.

    It looks for each node by its number and goes on without one, with weights that nobody computes
    (ktransformers#1570). Where binding is refused alone, its threads still touch their own memory.
    """
    nodes = _list_flag(arguments, _POOL_NODES)
    hidden = find_hidden_nodes(nodes)
    hidden += [n for n in nodes if n not in hidden and not _has_processor(n)]
    if not hidden:
        return ""
    return (
        f"kt-kernel has a pool on each of the NUMA nodes {format_list(nodes)}, and nodes "
        f"{format_list(sorted(hidden))} are hidden here; let the kubelet or SLURM give processors "
        "of all nodes (no single-numa-node, no cpuset.mems of one), or plan for a single node"
    )


def _list_flag(arguments: Sequence[str], flag: str) -> list[int]:
    """Return the numbers behind a flag; none where it is not there."""
    if flag not in arguments:
        return []
    after = arguments[list(arguments).index(flag) + 1 :]
    return [int(word) for word in itertools.takewhile(str.isdigit, after)]


def _list_node_cpus(node: int) -> list[int]:
    return parse_list(read_text(f"/sys/devices/system/node/node{node}/cpulist").strip())


def _has_processor(node: int) -> bool:
    """Return whether this process may use a processor of a node; True where nothing is known."""
    own = _list_node_cpus(node)
    return not own or bool(set(own) & set(list_available_cpus()))


def _count_cores(node: int, allowed: Sequence[int]) -> int:
    """Count the cores of a node that this process may use; 0 where nothing is known."""
    usable = set(_list_node_cpus(node)) & set(allowed)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({read_text(siblings.format(cpu)).strip() or str(cpu) for cpu in usable})


def choose_network(environment: Mapping[str, str], peer: str, notes: list[str]) -> dict[str, str]:
    """Return the variables that set the address by which another node reaches the engine."""
    address, interface = find_own_address(peer)
    if interface is None:
        notes.append(
            f"towards {peer} this node has {address or 'no address'}, and no interface that is "
            "known: the engine chooses one"
        )
    found = {"VLLM_HOST_IP": address} if address else {}
    for name in _INTERFACES:
        if interface and name not in environment:
            found[name] = environment.get("NCCL_SOCKET_IFNAME", interface)
    return found


def find_own_address(peer: str) -> tuple[str | None, str | None]:
    """Return the address by which this node reaches another, and the interface that has it."""
    try:
        row = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(row[0], socket.SOCK_DGRAM) as probe:
            probe.connect(row[4])
            address = str(probe.getsockname()[0])
    except OSError:
        return None, None
    return address, _find_interface(address)


def _find_interface(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def list_available_cpus() -> list[int]:
    """Return the processors that this process may run on."""
    return sorted(os.sched_getaffinity(0))
