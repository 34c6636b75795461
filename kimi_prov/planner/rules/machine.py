"""Rules about memory, disks and the settings of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import human
from kimi_prov.planner.rules.context import Case, Hit, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NETWORK_FS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs")
_LOAD_S = 1800
_SHM = 8 << 30


@rule(
    "memory.channels",
    "Memory channels are not populated: decoding from memory slows in proportion",
    "bandwidth is channels x transfers x 8 bytes",
)
def _channels(case: Case) -> Iterator[Hit]:
    memory = case.facts["memory"]
    used, total = memory.get("channels_populated"), memory.get("channels_total")
    if total is None and case.host.processor and case.host.processor.memory_channels:
        total = case.host.processor.memory_channels * case.host.sockets
    if used and total and used < total:
        yield Hit(
            "warning" if case.choice.hybrid or not case.host.gpu_bytes else "info",
            observed=f"{used} of {total} channels",
            required=f"{total} channels, one equal DIMM each at least",
            fix=f"add {total - used} DIMM(s) of the size and speed of the others",
        )


@rule(
    "numa.node_room",
    "A NUMA node has too little memory left for what will be bound to it",
    "--membind and kt-kernel's pools bind strictly: what the node does not hold is killed",
)
def _node_room(case: Case) -> Iterator[Hit]:
    """Only before a start: what runs already has taken its memory."""
    units = case.facts["kimi"].get("units") or {}
    stopped = ("inactive", "failed")
    if any(n.startswith("kimi-serve@") and state not in stopped for n, state in units.items()):
        return
    nodes = case.facts["numa"]["nodes"]
    shown = sum(row.get("memory_total_bytes") or 0 for row in nodes)
    if shown < case.host.memory_bytes * 0.8:
        # A virtual machine whose nodes grow as they are used.
        return
    rows = {row["id"]: row.get("memory_available_bytes") for row in nodes}
    short = [
        (node, left)
        for node in case.bound.nodes
        if (left := rows.get(node)) is not None and left < case.bound.share
    ]
    if short:
        yield Hit(
            "blocker",
            observed=", ".join(f"node {node}: {human(left)} available" for node, left in short),
            required=f"{human(case.bound.share)} on each of node(s) "
            f"{', '.join(map(str, case.bound.nodes))}",
            fix="stop what takes the memory there (`numastat -p PROCESS` tells), then apply again",
        )


@rule(
    "memory.speed",
    "Memory runs below its own speed",
    "a second DIMM on a channel, or a processor that takes less, lowers the clock",
)
def _speed(case: Case) -> Iterator[Hit]:
    slow = [
        (dimm["configured_mt_s"], dimm["speed_mt_s"])
        for dimm in case.facts["memory"].get("dimms") or ()
        if dimm.get("configured_mt_s") and dimm.get("speed_mt_s")
        if dimm["configured_mt_s"] < dimm["speed_mt_s"]
    ]
    if slow:
        yield Hit(
            "info",
            observed=f"{slow[0][0]} of {slow[0][1]} MT/s on {len(slow)} DIMM(s)",
            required="one DIMM a channel, at the processor's speed",
        )


@rule(
    "memory.dimms_mixed",
    "DIMMs of different sizes: part of memory is not interleaved over all channels",
    "vendors' population rules: equal DIMMs on every channel",
)
def _mixed(case: Case) -> Iterator[Hit]:
    dimms = case.facts["memory"].get("dimms") or ()
    sizes = {dimm["size_bytes"] for dimm in dimms if dimm.get("size_bytes")}
    if len(sizes) > 1:
        yield Hit(
            "warning",
            observed=", ".join(human(size) for size in sorted(sizes)),
            required="equal DIMMs",
            fix="use DIMMs of one size",
        )


@rule(
    "memory.cgroup",
    "A limit gives this system less memory than the machine has",
    "cgroup v2 memory.max",
)
def _cgroup(case: Case) -> Iterator[Hit]:
    memory = case.facts["memory"]
    limit, total = memory.get("cgroup_limit_bytes"), memory.get("total_bytes")
    if limit and total and limit < total and case.heavy:
        yield Hit(
            "info",
            observed=human(limit),
            required=f"{human(total)} are in the machine",
            fix="raise the container's memory limit",
        )


@rule(
    "memory.shm",
    "Shared memory is small: workers of one model talk through /dev/shm",
    "NCCL and vLLM's workers share memory there; reference 000 gave it 128 GiB",
)
def _shm(case: Case) -> Iterator[Hit]:
    size = case.facts["memory"].get("shm_size_bytes")
    if size is not None and size < _SHM and case.budget.tensor_parallel > 1:
        yield Hit(
            "warning",
            observed=human(size),
            required=human(_SHM),
            fix="mount -o remount,size=16G /dev/shm, and the same in /etc/fstab",
        )


@rule(
    "memory.swap",
    "Swap is on: weights that were swapped out come back a page at a time",
    "vm.swappiness only makes it rarer",
)
def _swap(case: Case) -> Iterator[Hit]:
    if case.host.swap_bytes and case.heavy:
        yield Hit(
            "info",
            observed=human(case.host.swap_bytes),
            required="no swap",
            fix="swapoff -a, and remove it from /etc/fstab",
        )


@rule(
    "memory.hugepages",
    "Reserved huge pages are memory that the engine cannot have",
    "vm.nr_hugepages takes memory away from everything else",
)
def _hugepages(case: Case) -> Iterator[Hit]:
    memory = case.facts["memory"]
    size = (memory.get("hugepages_total") or 0) * (memory.get("hugepage_bytes") or (2 << 20))
    if size > case.host.memory_bytes // 20 and case.heavy:
        yield Hit(
            "warning",
            observed=human(size),
            required="none reserved",
            fix="sysctl vm.nr_hugepages=0, unless another program needs them",
        )


@rule(
    "tuning.numa_balancing",
    "NUMA balancing moves pages that are bound on purpose",
    "ubergarm in ktransformers issue 806; kernel sysctl documentation",
)
def _numa_balancing(case: Case) -> Iterator[Hit]:
    row = (case.facts["tunables"].get("sysctl") or {}).get("kernel.numa_balancing") or {}
    if row.get("value") not in (None, "0") and len(case.host.nodes) > 1 and case.heavy:
        yield _setting(row, f"kernel.numa_balancing is {row['value']}", "0")


@rule(
    "tuning.governor",
    "The CPU frequency governor saves power",
    "a governor that ramps up adds latency to every token",
)
def _governor(case: Case) -> Iterator[Hit]:
    row = case.facts["tunables"].get("governor") or {}
    if row.get("value") not in (None, "performance") and case.heavy:
        yield _setting(row, str(row["value"]), "performance")


@rule(
    "tuning.thp",
    "Transparent huge pages are off",
    "weights in memory of the engine's own are read from end to end for every token",
)
def _thp(case: Case) -> Iterator[Hit]:
    row = case.facts["tunables"].get("thp") or {}
    on_cpu = case.choice.hybrid or not case.host.gpu_bytes
    if row.get("value") == "never" and on_cpu and case.heavy:
        yield _setting(row, "never", "always or madvise")


def _setting(row: Mapping[str, Any], observed: str, required: str) -> Hit:
    """Say what `apply` sets by itself; what it cannot is a warning."""
    if row.get("writable"):
        return Hit("info", observed=observed, required=f"{required}: `apply` sets it")
    return Hit(
        "warning",
        observed=observed,
        required=required,
        fix="set it on the host that this machine runs on"
        if row.get("writable") is False
        else f"set it to {required.split(' ', maxsplit=1)[0]}",
    )


@rule(
    "disk.network",
    "The weights would lie on a network or FUSE file system",
    "reference 004, trouble 12: a FUSE mount took over an hour for 595 GB",
)
def _network_fs(case: Case) -> Iterator[Hit]:
    row = _root(case)
    kind = str(row.get("fstype") or "") if row else ""
    if row and (kind in _NETWORK_FS or kind.startswith("fuse")):
        yield Hit(
            "warning",
            observed=f"{row['mount']}: {kind}",
            required="a local disk below /srv/kimi",
            fix="mount a local NVMe drive at /srv/kimi; weights come to it by parallel transfer",
        )


@rule(
    "disk.capacity",
    "The disks are too small for the weights",
    "bytes of the weights, the engine's environment while it is made, 1 GB reserve",
)
def _capacity(case: Case) -> Iterator[Hit]:
    sizes = [d["size_bytes"] for d in case.facts.get("disks") or () if d.get("size_bytes")]
    need = case.plan["disk"]["required_bytes"]
    if _root(case) is None and sizes and sum(sizes) < need:
        yield Hit(
            "blocker",
            observed=human(sum(sizes)),
            required=human(need),
            fix="quote a larger NVMe drive",
        )


@rule(
    "disk.speed",
    "The disk makes every start long",
    "bytes of the weights over the disk's sequential speed",
)
def _disk_speed(case: Case) -> Iterator[Hit]:
    rates = [
        d["read_bytes_per_s"] for d in case.facts.get("disks") or () if d.get("read_bytes_per_s")
    ]
    size = case.plan["model"]["bytes"]
    if rates and size / max(rates) > _LOAD_S:
        yield Hit(
            "warning",
            observed=f"{max(rates) / 1e9:.1f} GB/s: {size / max(rates) / 60:.0f} minutes to read "
            f"{human(size)}",
            required=f"{size / _LOAD_S / 1e9:.1f} GB/s for half an hour",
            fix="use an NVMe drive, or several as one",
        )


@rule(
    "host.gib",
    "Google's GIB libraries are installed: they break NCCL on a single machine",
    "reference 004, trouble 5: NCCL fails or hangs at the start",
)
def _gib(case: Case) -> Iterator[Hit]:
    found = case.facts.get("gib")
    present = bool(found.get("present", any(found.values()))) if isinstance(found, dict) else found
    if present and case.host.gpu_bytes:
        yield Hit(
            "blocker",
            observed=_shown(found),
            required="no GIB plugin that ldconfig knows",
            fix="kimi-prov apply sets them aside; by hand, remove /usr/local/gib and its files in "
            "/etc/ld.so.conf.d, then run ldconfig: variables and LD_LIBRARY_PATH do not help",
        )


def _shown(found: object) -> str:
    if isinstance(found, dict):
        kept = [f"{key}: {value}" for key, value in found.items() if value]
        return ", ".join(kept)[:200] or "present"
    if isinstance(found, (list, tuple)):
        return ", ".join(str(part) for part in found)[:200]
    return "present"


def _root(case: Case) -> Mapping[str, Any] | None:
    rows = case.facts["filesystems"]
    return next((row for row in rows if "/srv/kimi" in (row.get("holds") or [])), None)
