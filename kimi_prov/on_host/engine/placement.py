"""What of the planned placement is possible in a job or a pod with less than the planned machine.

Its cgroup may hide NUMA nodes and processors, and only there is the address known by which other
nodes are reached. Each function adds to `notes` what differs from the plan.
"""

from __future__ import annotations

import fcntl
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
