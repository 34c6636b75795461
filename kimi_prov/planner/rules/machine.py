"""Rules about memory, disks and the settings of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text, paths, unit_names
from kimi_prov.contract.node_kinds import list_own_nodes
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.software import packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.facts.machine import (
        ChoiceFacts,
        FilesystemFacts,
        SecurityFacts,
        SysctlFacts,
    )
    from kimi_prov.contract.documents.facts.recorded import RecordedPart

_NETWORK_FS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs")
_MAX_LOAD_S = 1800
# The parts without which the plan may be for another machine, and what tells them.
_DECISIVE: dict[RecordedPart, str] = {
    "processor": "the processor: lscpu",
    "memory": "the memory: /proc/meminfo or free -b, and numactl --hardware",
    "GPUs": "the GPUs: nvidia-smi -q -x (or nvidia-smi, or lspci); they were planned as none",
}
_MIN_SHM_BYTES = 8 << 30


@register_rule("catalogue.status")
def _check_support_status(context: PlanContext) -> Iterator[RuleResult]:
    rows = (context.model, context.choice.engine, context.host.processor, context.host.gpu)
    for row in rows:
        if row is None or row.status == "available":
            continue
        announced = row.status == "announced"
        yield RuleResult(
            severity="warning" if announced else "info",
            names={"name": row.name},
            observed=f"{row.name}: {row.status}"
            + (f", checked {row.checked}" if row.checked else ""),
            required="a product that is available",
            fix="ask the maker for a date and for measured speeds, or choose an available one"
            if announced
            else None,
            source=row.source,
        )


@register_rule("recording.not_told")
def _check_not_told(context: PlanContext) -> Iterator[RuleResult]:
    """Check the parts that decide: what no file tells may be there."""
    recorded = context.facts.get("recorded")
    missing = [part for part in recorded["not_told"] if part in _DECISIVE] if recorded else []
    if missing:
        yield RuleResult(
            observed=f"not told: {', '.join(missing)}",
            required="; ".join(_DECISIVE[part] for part in missing),
            fix="put the output of these commands into the same folder or file",
        )


@register_rule("recording.damaged")
def _check_damaged(context: PlanContext) -> Iterator[RuleResult]:
    recorded = context.facts.get("recorded")
    if recorded and recorded["damaged"]:
        yield RuleResult(
            observed="; ".join(
                f"{clean_text.quote_word(row['file'])}: {row['problem']}"
                for row in recorded["damaged"][:10]
            ),
            required="whole files; what they would tell is not counted",
            fix="record these files again",
        )


@register_rule("memory.channels")
def _check_channels(context: PlanContext) -> Iterator[RuleResult]:
    memory = context.facts["memory"]
    used, total = memory.get("channels_populated"), memory.get("channels_total")
    if total is None and context.host.processor and context.host.processor.memory_channels:
        total = context.host.processor.memory_channels * context.host.sockets
    if used and total and used < total:
        yield RuleResult(
            severity="warning" if context.choice.hybrid or not context.host.gpu_bytes else "info",
            observed=f"{used} of {total} channels",
            required=f"{total} channels, one equal DIMM each at least",
            fix=f"add {total - used} DIMM(s) of the size and speed of the others",
        )


@register_rule("numa.node_room")
def _check_node_room(context: PlanContext) -> Iterator[RuleResult]:
    """Check free memory only before a start: a running engine has its memory already."""
    units = context.facts["kimi"].get("units") or {}
    stopped = ("inactive", "failed")
    if any(unit_names.is_serve(n) and state not in stopped for n, state in units.items()):
        return
    nodes = list_own_nodes(context.facts["numa"]["nodes"])
    shown = sum(row.get("memory_total_bytes") or 0 for row in nodes)
    if shown < context.host.memory_bytes * 0.8:
        # A virtual machine whose nodes grow as they are used.
        return
    rows = {row["id"]: row.get("memory_available_bytes") for row in nodes}
    short = [
        (node, left)
        for node in context.bound.nodes
        if (left := rows.get(node)) is not None and left < context.bound.share
    ]
    if short:
        yield RuleResult(
            observed=", ".join(
                f"node {node}: {format_bytes(left)} available" for node, left in short
            ),
            required=f"{format_bytes(context.bound.share)} on each of node(s) "
            f"{', '.join(map(str, context.bound.nodes))}",
            fix="stop what takes the memory there (see `numastat -p PROCESS`), then apply again",
        )


@register_rule("memory.speed")
def _check_speed(context: PlanContext) -> Iterator[RuleResult]:
    speeds = [
        (dimm.get("configured_mt_s"), dimm.get("speed_mt_s"))
        for dimm in context.facts["memory"].get("dimms") or ()
    ]
    slow = [(have, most) for have, most in speeds if have and most and have < most]
    if slow:
        yield RuleResult(
            observed=f"{slow[0][0]} of {slow[0][1]} MT/s on {len(slow)} DIMM(s)",
            required="one DIMM a channel, at the processor's speed",
        )


@register_rule("memory.dimms_mixed")
def _check_mixed_modules(context: PlanContext) -> Iterator[RuleResult]:
    dimms = context.facts["memory"].get("dimms") or ()
    sizes = {size for dimm in dimms if (size := dimm.get("size_bytes"))}
    if len(sizes) > 1:
        yield RuleResult(
            observed=", ".join(format_bytes(size) for size in sorted(sizes)),
            required="equal DIMMs",
            fix="use DIMMs of one size",
        )


@register_rule("memory.cgroup")
def _check_cgroup(context: PlanContext) -> Iterator[RuleResult]:
    memory = context.facts["memory"]
    limit, total = memory.get("cgroup_limit_bytes"), memory.get("total_bytes")
    if limit and total and limit < total and context.heavy:
        yield RuleResult(
            observed=format_bytes(limit),
            required=f"{format_bytes(total)} are in the machine",
            fix="raise the container's memory limit",
        )


@register_rule("memory.shm")
def _check_shm(context: PlanContext) -> Iterator[RuleResult]:
    size = context.facts["memory"].get("shm_size_bytes")
    if size is not None and size < _MIN_SHM_BYTES and context.budget.tensor_parallel > 1:
        yield RuleResult(
            observed=format_bytes(size),
            required=format_bytes(_MIN_SHM_BYTES),
            fix="mount -o remount,size=16G /dev/shm, and the same in /etc/fstab",
        )


@register_rule("memory.swap")
def _check_swap(context: PlanContext) -> Iterator[RuleResult]:
    if context.host.swap_bytes and context.heavy:
        yield RuleResult(
            observed=format_bytes(context.host.swap_bytes),
            required="no swap",
            fix="swapoff -a, and remove it from /etc/fstab",
        )


@register_rule("memory.hugepages")
def _check_hugepages(context: PlanContext) -> Iterator[RuleResult]:
    memory = context.facts["memory"]
    size = (memory.get("hugepages_total") or 0) * (memory.get("hugepage_bytes") or (2 << 20))
    if size > context.host.memory_bytes // 20 and context.heavy:
        yield RuleResult(
            observed=format_bytes(size),
            required="none reserved",
            fix="sysctl vm.nr_hugepages=0, unless another program needs them",
        )


@register_rule("tuning.numa_balancing")
def _check_numa_balancing(context: PlanContext) -> Iterator[RuleResult]:
    row = (context.facts["tunables"].get("sysctl") or {}).get("kernel.numa_balancing")
    if (
        row
        and row.get("value") not in (None, "0")
        and len(context.host.nodes) > 1
        and context.heavy
    ):
        yield _describe_setting(row, f"kernel.numa_balancing is {row['value']}", "0")


@register_rule("tuning.governor")
def _check_governor(context: PlanContext) -> Iterator[RuleResult]:
    row = context.facts["tunables"].get("governor")
    if row and row.get("value") not in (None, "performance") and context.heavy:
        yield _describe_setting(row, str(row["value"]), "performance")


@register_rule("tuning.thp")
def _check_thp(context: PlanContext) -> Iterator[RuleResult]:
    row = context.facts["tunables"].get("thp")
    on_cpu = context.choice.hybrid or not context.host.gpu_bytes
    if row and row.get("value") == "never" and on_cpu and context.heavy:
        yield _describe_setting(row, "never", "always or madvise")


def _describe_setting(row: SysctlFacts | ChoiceFacts, observed: str, required: str) -> RuleResult:
    """Report a setting that `apply` changes; one that it cannot change is a warning."""
    if row.get("writable"):
        return RuleResult(
            severity="info", observed=observed, required=f"{required}: `apply` sets it"
        )
    return RuleResult(
        severity="warning",
        observed=observed,
        required=required,
        fix="set it on the host that this machine runs on"
        if row.get("writable") is False
        else f"set it to {required.split(' ', maxsplit=1)[0]}",
    )


@register_rule("os.cgroups")
def _check_cgroups(context: PlanContext) -> Iterator[RuleResult]:
    hierarchy = (context.facts.get("cgroup") or {}).get("hierarchy")
    if hierarchy in ("legacy", "hybrid"):
        yield RuleResult(
            severity="blocker" if hierarchy == "legacy" else "warning",
            observed=f"the {hierarchy} hierarchy",
            required="the unified hierarchy (version 2)",
            fix="remove systemd.unified_cgroup_hierarchy=0 and "
            "systemd.legacy_systemd_cgroup_controller from GRUB_CMDLINE_LINUX in "
            "/etc/default/grub, run update-grub and restart the machine",
        )


@register_rule("os.selinux")
def _check_selinux(context: PlanContext) -> Iterator[RuleResult]:
    if _read_security(context).get("selinux") == "enforcing":
        yield RuleResult(
            observed="enforcing",
            required="permissive, or off",
            fix="setenforce 0, and SELINUX=permissive in /etc/selinux/config",
        )


@register_rule("os.apparmor")
def _check_apparmor(context: PlanContext) -> Iterator[RuleResult]:
    confined = _read_security(context).get("apparmor_enforced") or []
    if confined:
        names = [clean_text.quote_word(name) for name in confined]
        yield RuleResult(
            observed=f"enforced: {', '.join(names)}",
            required="that it allows /etc/kimi, /run/kimi-proxy and the ports of the plan",
            fix=f"add these to the profile, or  aa-complain {' '.join(names)}",
        )


def _read_security(context: PlanContext) -> SecurityFacts:
    return context.facts.get("security") or {}


@register_rule("packages.busy")
def _check_packages_busy(context: PlanContext) -> Iterator[RuleResult]:
    busy = context.facts["packages"].get("busy")
    if busy and packages.is_install_needed(context.plan, context.facts):
        yield RuleResult(
            severity="info",
            observed=packages.describe_holder(busy),
            required="apt's locks: `apply` waits for them",
        )


@register_rule("packages.unfinished")
def _check_packages_unfinished(context: PlanContext) -> Iterator[RuleResult]:
    """Check unless packages are being installed: some are unfinished then."""
    package_facts = context.facts["packages"]
    names = package_facts.get("unfinished")
    if (
        names
        and not package_facts.get("busy")
        and packages.is_install_needed(context.plan, context.facts)
    ):
        yield RuleResult(**packages.describe_unfinished(names))


@register_rule("disk.network")
def _check_network_fs(context: PlanContext) -> Iterator[RuleResult]:
    row = _find_weights_filesystem(context)
    kind = str(row.get("fstype") or "") if row else ""
    if row and (kind in _NETWORK_FS or kind.startswith("fuse")):
        yield RuleResult(
            observed=f"{row['mount']}: {kind}",
            required="a local disk below /srv/kimi",
            fix="mount a local NVMe drive at /srv/kimi; weights come to it by parallel transfer",
        )


@register_rule("disk.capacity")
def _check_capacity(context: PlanContext) -> Iterator[RuleResult]:
    disks = context.facts.get("disks") or ()
    sizes = [size for disk in disks if (size := disk.get("size_bytes"))]
    need = context.plan["disk"]["required_bytes"]
    if _find_weights_filesystem(context) is None and sizes and sum(sizes) < need:
        yield RuleResult(
            observed=format_bytes(sum(sizes)),
            required=format_bytes(need),
            fix="quote a larger NVMe drive",
        )


@register_rule("disk.speed")
def _check_disk_speed(context: PlanContext) -> Iterator[RuleResult]:
    disks = context.facts.get("disks") or ()
    rates = [rate for disk in disks if (rate := disk.get("read_bytes_per_s"))]
    size = context.plan["model"]["bytes"]
    if rates and size / max(rates) > _MAX_LOAD_S:
        yield RuleResult(
            observed=f"{max(rates) / 1e9:.1f} GB/s: {size / max(rates) / 60:.0f} minutes to read "
            f"{format_bytes(size)}",
            required=f"{size / _MAX_LOAD_S / 1e9:.1f} GB/s for half an hour",
            fix="use an NVMe drive, or several as one",
        )


@register_rule("host.gib")
def _check_gib(context: PlanContext) -> Iterator[RuleResult]:
    gib = context.facts.get("gib")
    present = bool(gib.get("present", any(gib.values()))) if isinstance(gib, dict) else gib
    if present and context.host.gpu_bytes:
        yield RuleResult(
            observed=_format_detail(gib),
            required="no GIB plugin that ldconfig knows",
            fix="kimi-prov apply sets them aside; by hand, remove /usr/local/gib and its files in "
            "/etc/ld.so.conf.d, then run ldconfig: variables and LD_LIBRARY_PATH do not help",
        )


def _format_detail(detail: object) -> str:
    if isinstance(detail, dict):
        kept = [f"{key}: {value}" for key, value in detail.items() if value]
        return ", ".join(kept)[:200] or "present"
    if isinstance(detail, (list, tuple)):
        return ", ".join(str(part) for part in detail)[:200]
    return "present"


def _find_weights_filesystem(context: PlanContext) -> FilesystemFacts | None:
    """Return the file system of the weights."""
    rows = context.facts["filesystems"]
    held = {path: row for row in rows for path in row.get("holds") or []}
    return held.get(paths.MODELS) or held.get(paths.ROOT)
