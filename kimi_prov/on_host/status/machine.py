"""What runs on this machine now: units, versions, model, RAM disk, port, memory, uptime."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.contract import gateways, groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import certificate, haproxy, stop_state, tls
from kimi_prov.on_host.engine import runtime
from kimi_prov.on_host.history import applied, open_switch
from kimi_prov.on_host.keys import key_map
from kimi_prov.on_host.lifecycle import status
from kimi_prov.on_host.monitor import status as monitor
from kimi_prov.on_host.probe import nvidia_smi
from kimi_prov.on_host.status import gateway as behind
from kimi_prov.on_host.status import gpus
from kimi_prov.on_host.status.sample import Sample
from kimi_prov.on_host.system import boot, group_state, kept_state, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json, read_text
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.update import waiting
from kimi_prov.on_host.watchdog import bundles
from kimi_prov.on_host.watchdog import state as watched
from kimi_prov.on_host.web import status as page
from kimi_prov.on_host.weights import prepared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import NowAnswer
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import ModelPlan
    from kimi_prov.contract.documents.status import NotServing, StatusAnswer
    from kimi_prov.contract.documents.status.host import AppliedStatus, DriftStatus, FoundUpdates
    from kimi_prov.contract.documents.status.machine import (
        DiskStatus,
        EngineBehind,
        GroupPhase,
        GroupStatus,
        HostMemory,
        HostState,
        InterpreterStatus,
        LastHang,
        MemoryStatus,
        ModelStatus,
        MountedRamDisk,
        PlacementStatus,
        PortStatus,
        RamDiskStatus,
        UnitStatus,
        VersionsStatus,
        WatchdogStatus,
    )
    from kimi_prov.contract.documents.status.monitor import MetricsStatus

# States of a certificate that clients do not accept.
_REFUSED = {
    "expired": "; the certificate has ended",
    "early": "; the certificate is not valid yet",
}
_PLACES = (layout.ROOT, layout.MODELS, layout.ENGINES, layout.HOME, layout.ETC, "/var/log")
SUPPORT = (
    unit_names.FETCH,
    unit_names.RAM_MOUNT,
    unit_names.STAGE,
    unit_names.WARM,
    unit_names.CONVERT,
    unit_names.ACME_TIMER,
    unit_names.DRIFT_TIMER,
    unit_names.USAGE,
    unit_names.METRICS_TIMER,
    unit_names.NODE_EXPORTER,
    unit_names.PROMETHEUS,
    unit_names.ALERTMANAGER,
    unit_names.WATCHDOG,
    unit_names.IDLE_TIMER,
    unit_names.WAKE_SOCKET,
)


def measure_disk(path: Path) -> MountedRamDisk | None:
    """Return size and use of the file system mounted at `path` in bytes; None without a mount."""
    if not os.path.ismount(str(path)):
        return None
    info = os.statvfs(str(path))
    total = info.f_blocks * info.f_frsize
    return {"size_bytes": total, "used_bytes": total - info.f_bfree * info.f_frsize}


def measure_disks(paths: Paths) -> list[DiskStatus]:
    """Return size and free bytes of each file system with files of ours, or of journald."""
    found: dict[int, DiskStatus] = {}
    for name in _PLACES:
        try:
            path = os.path.realpath(str(paths.locate(name)))
            info, device = os.statvfs(path), os.stat(path).st_dev
        except OSError:
            continue
        found.setdefault(
            device,
            {
                "path": name,
                "size_bytes": info.f_blocks * info.f_frsize,
                "free_bytes": info.f_bavail * info.f_frsize,
            },
        )
    return list(found.values())


def _read_versions(paths: Paths, plan: MachinePlan) -> VersionsStatus:
    link = Path(layout.ENGINE)
    engine = plan.get("engine", {})
    haproxy_version = run("dpkg-query", "-W", "-f=${Version}", "haproxy").stdout or None
    return {
        "engine": engine.get("name"),
        "engine_variant": engine.get("variant"),
        "engine_version": engine.get("version"),
        "engine_directory": os.path.realpath(str(link)) if link.exists() else None,
        "engine_locks": engine.get("locks"),
        "engine_python": engine.get("python"),
        "engine_interpreter": _describe_interpreter(plan),
        "driver": nvidia_smi.parse_module(read_text(Path("/proc/driver/nvidia/version")))[
            "version"
        ],
        "driver_failed": _find_failed_driver(paths),
        "proxy": haproxy_version,
    }


def _find_failed_driver(paths: Paths) -> str | None:
    """Describe the version of NVIDIA's driver that was tried here in vain; None for none."""
    failed = kept_state.read(paths, layout.DRIVER_STATE).get("failed")
    if not isinstance(failed, dict):
        return None
    runs = nvidia_smi.parse_module(read_text(Path("/proc/driver/nvidia/version")))["version"]
    return (
        f"NVIDIA's driver {failed.get('version')} did not answer here ({failed.get('why')}); "
        f"{f'{runs} runs' if runs else 'none runs'}: name another in kimi_nvidia_driver_version"
    )


def _describe_interpreter(plan: MachinePlan) -> InterpreterStatus | None:
    """Name the bundled build of Python; None where the machine's own is used."""
    brought = plan.get("installation", {}).get("python")
    if not brought:
        return None
    return {
        "version": brought["version"],
        "build": brought["build"],
        "sha256": brought["sha256"],
        "dir": brought["dir"],
    }


def _compute_uptime(unit: dict[str, Any]) -> float | None:
    since = unit.get("active_since_monotonic_us", 0)
    if unit.get("state") != "active" or not since:
        return None
    return float(round(time.clock_gettime(time.CLOCK_MONOTONIC) - since / 1e6, 1))


def _build_unit(unit: dict[str, Any]) -> UnitStatus:
    return {
        "state": unit["state"],
        "sub_state": unit["sub_state"],
        "enabled": unit["enabled"],
        "restarts": unit["restarts"],
        "uptime_seconds": _compute_uptime(unit),
    }


def _build_port(paths: Paths, plan: MachinePlan) -> PortStatus:
    port = plan["proxy"]["port"]
    try:
        engines: list[EngineBehind] = haproxy.list_servers(paths.socket)
    except (OSError, HostError):
        engines = []
    return {
        "number": port,
        "listening": runtime.find_listeners([port])[str(port)],
        "allowed_networks": plan["proxy"]["allowed_networks"],
        "guarded": run("nft", "list", "table", *layout.FIREWALL_TABLE).returncode == 0,
        "certificate_sha256": tls.compute_fingerprint(read_text(paths.tls_crt)),
        "certificate": certificate.describe_current(paths, plan),
        "keys": sorted(key_map.read(paths)),
        "key_not_shown_yet": paths.operator_new.exists(),
        "engines": engines,
    }


def _read_host_memory() -> HostMemory:
    fields = dict(line.split(":", 1) for line in read_text(Path("/proc/meminfo")).splitlines())
    return {
        "host_total_bytes": int(fields["MemTotal"].split()[0]) * 1024,
        "host_available_bytes": int(fields["MemAvailable"].split()[0]) * 1024,
    }


def _sum_memory(placed: list[dict[str, Any]]) -> MemoryStatus:
    return {
        **_read_host_memory(),
        "engines": [
            {
                "index": item["index"],
                "cgroup_bytes": item["unit"].get("memory_bytes"),
                "resident_bytes": sum(one["resident_bytes"] for one in item["processes"]),
            }
            for item in placed
        ],
    }


def collect(paths: Paths) -> StatusAnswer:
    """Return the status document of this host; `ok` when everything that should run does."""
    plan = plans.read_plan(paths.plan)
    if not plan:
        return monitor.build_document(paths) or _build_unprovisioned(paths)
    if gateways.is_gateway(plan):
        return {
            **behind.build_document(paths, plan),
            "applied": _build_applied(paths),
            "drift": _build_drift(paths, units.read_states(unit_names.DRIFT_TIMER)),
            **_build_updates(),
        }
    return _build_machine(paths, plan)


def _list_needed_units(plan: MachinePlan) -> list[str]:
    """Name the units that have to be up beside the engines."""
    needed = [unit_names.FIREWALL, *([unit_names.WEB] if plan.get("web") else [])]
    needed += [unit_names.PROXY] if groups.has_proxy(plan) else []
    # A plan of an earlier version does not have these.
    needed += [unit_names.USAGE] if groups.serves_clients(plan) and plan.get("usage") else []
    needed += [unit_names.NODE_EXPORTER, unit_names.METRICS_TIMER] if plan.get("metrics") else []
    needed += [unit_names.ACME_TIMER] if plan["proxy"]["tls"].get("acme") else []
    return needed + status.list_watching_units(plan)


def _describe_rank(group: GroupStatus, state: HostState, *, serves: bool) -> tuple[HostState, str]:
    """Return the state of a host of a group, and what it does."""
    if waits := _describe_wait(group["phase"], group["said"]):
        return status.STARTING, waits
    return state, state if serves else f"rank {group['rank']}; {group['head']} serves"


def _build_ram_disk(plan: MachinePlan) -> RamDiskStatus:
    return {
        "planned": plan["ram_disk"]["enabled"],
        "mounted": measure_disk(Path(layout.RAM)),
        "reason": plan["ram_disk"]["reason"],
    }


def _build_model(model: ModelPlan) -> ModelStatus:
    return {
        "name": model["name"],
        "revision": model["revision"],
        "served_names": model["served_names"],
        "directory": model["serve_dir"],
        "bytes": model["bytes"],
        "context": model["context"],
        "weights_verified": (Path(model["dir"]) / layout.MODEL_VERIFIED).exists(),
    }


def _build_unprovisioned(paths: Paths) -> NotServing:
    reasons = [f"not provisioned: no {layout.PLAN}", _find_failed_driver(paths)]
    return {"ok": False, "provisioned": False, "detail": "; ".join(filter(None, reasons))}


def _build_machine(paths: Paths, plan: MachinePlan) -> StatusAnswer:
    """Return the document of a host that serves, or that is one of a group that does."""
    sample = Sample(plan)
    serving = [unit_names.get_engine_unit(item) for item in plan["instances"]]
    serves = groups.serves_clients(plan)
    states = units.read_states(
        *serving, unit_names.PROXY, unit_names.WEB, unit_names.FIREWALL, *SUPPORT
    )
    shown = {
        name: _build_unit(unit) for name, unit in states.items() if unit["load_state"] == "loaded"
    }
    web = plan.get("web")
    rests = stop_state.read(paths)
    needed = [*([] if rests else serving), *_list_needed_units(plan)]
    down = [name for name in needed if states.get(name, {}).get("state") != "active"]
    placed = runtime.collect(paths)["instances"]
    port = _build_port(paths, plan) if serves else None
    refused = _REFUSED.get(port["certificate"]["state"], "") if port else ""
    group = _build_group(paths, plan, serving[0]) if plan.get("group") else None
    own = {name: states.get(name, {}) for name in serving}
    wakes = paths.waking.exists()
    state = status.decide_state(rests, own, down=bool(down), wakes=wakes)
    detail: str = "not active: " + ", ".join(down) if down else state
    if rests and not down:
        what = "; a client asks: it starts" if wakes else f": {status.FIX}"
        detail = stop_state.describe(rests) + what
    elif group and not down:
        state, detail = _describe_rank(group, state, serves=serves)
    return {
        "ok": not down
        and not refused
        and bool(rests or not group or group["phase"] == group_state.SERVING),
        "state": state,
        "provisioned": True,
        "random_weights": bool(plan["model"]["random_weights"]),
        "trained_on": plan["model"].get("trained_on"),
        "stand_in": replaced["said"] if (replaced := plan.get("stand_in")) else None,
        "detail": detail + refused,
        "rest": status.build_document(paths, plan, rests),
        "units": shown,
        "applied": _build_applied(paths),
        "group": group,
        "versions": _read_versions(paths, plan),
        "model": _build_model(plan["model"]),
        "ram_disk": _build_ram_disk(plan),
        "prepared_weights": prepared.build_status(paths, plan),
        "disks": measure_disks(paths),
        "port": port,
        "web": page.build_document(paths, web, states.get(unit_names.WEB, {})) if web else None,
        "memory": _sum_memory(placed),
        "placement": [_build_placement(item["index"], item["processes"]) for item in placed],
        **_build_updates(),
        "uptime_seconds": boot.read_uptime_s(),
        "drift": _build_drift(paths, states),
        "metrics": _build_metrics(paths, plan, states),
        "watchdog": _build_watchdog(paths, plan, states),
        "now": sample.read(port["engines"] if port else ()),
        "findings": gpus.list_findings(paths, sample.cards),
    }


def collect_changing(paths: Paths) -> NowAnswer:
    """Return only those parts of the status that change from second to second."""
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        return {"ok": False, "provisioned": False, "detail": f"not provisioned: no {layout.PLAN}"}
    sample = Sample(plan)
    names = [unit_names.get_engine_unit(item) for item in plan["instances"]]
    states = units.read_states(*names, unit_names.WATCHDOG)
    down = [name for name in names if states.get(name, {}).get("state") != "active"]
    waits = ""
    if plan.get("group") and not down:
        seen = group_state.read(paths.group_run)
        waits = _describe_wait(seen.phase, seen.said)
    try:
        behind = haproxy.list_servers(paths.socket) if groups.serves_clients(plan) else []
    except (OSError, HostError):
        behind = []
    return {
        "ok": not down and not waits,
        "provisioned": True,
        "detail": "not active: " + ", ".join(down) if down else waits or "serving",
        "memory": _read_host_memory(),
        "watchdog": _build_watchdog(paths, plan, states),
        "now": sample.read(behind),
    }


def _build_watchdog(
    paths: Paths, plan: MachinePlan, states: dict[str, dict[str, Any]]
) -> WatchdogStatus | None:
    """Return whether the watchdog would see an engine that hangs, and the last one that did.

    None for a plan of an earlier version.
    """
    planned = plan.get("watchdog")
    if not planned:
        return None
    last = watched.find_last_hang(paths)
    return {
        "enabled": planned["enabled"],
        "state": states.get(unit_names.WATCHDOG, {}).get("state") or "inactive",
        "reason": planned["reason"],
        "bundles": len(bundles.list_names(paths)),
        "last_hang": _describe_hang(last) if last else None,
        "memory_ended": watched.list_memory_ends(paths),
    }


def _describe_hang(hang: Mapping[str, Any]) -> LastHang:
    return {
        "unit": hang["unit"],
        "at": hang["at"],
        "why": hang["why"],
        "still_s": hang["still_s"],
        "done": hang["done"],
        "served_again_s": hang.get("served_again_s"),
        "bundle": hang.get("bundle"),
    }


def _build_updates() -> FoundUpdates:
    """Return which updates of the operating system wait, or why that is unknown."""
    try:
        return {"updates": waiting.collect(), "updates_error": None}
    except (OSError, HostError, ValueError) as error:
        return {"updates": None, "updates_error": describe_error(error)}


def _build_drift(paths: Paths, states: dict[str, dict[str, Any]]) -> DriftStatus | None:
    """Return the last result of the drift timer; None without a timer."""
    timer = states.get(unit_names.DRIFT_TIMER, {})
    if timer.get("load_state") != "loaded":
        return None
    found = read_json(paths.drift_state)
    return {
        "timer": timer["state"],
        "looked_at": found.get("looked_at"),
        "complete": found.get("complete"),
        "differences": found.get("differences"),
        "findings": found.get("findings") or {},
        "detail": found.get("detail") or "nothing was compared yet",
    }


def _build_metrics(
    paths: Paths, plan: MachinePlan, states: dict[str, dict[str, Any]]
) -> MetricsStatus | None:
    """Return where metrics are read and when they were written; None where there are none."""
    planned = plan.get("metrics")
    if not planned:
        return None
    try:
        written = os.stat(str(paths.metrics_file)).st_mtime
    except OSError:
        written = None
    return {
        "port": planned["port"],
        "allowed_networks": planned["allowed_networks"],
        "listening": runtime.find_listeners([planned["port"]])[str(planned["port"])],
        "node_exporter": states.get(unit_names.NODE_EXPORTER, {}).get("state"),
        "timer": states.get(unit_names.METRICS_TIMER, {}).get("state"),
        "written_at": None if written is None else _format_time(written),
        "monitor": monitor.build_section(paths),
    }


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _build_applied(paths: Paths) -> AppliedStatus | None:
    """Return what was applied last, and whether a switch is open; None where it is unknown."""
    found = applied.read(paths)
    state = open_switch.read(paths)
    if not found:
        return None
    return {
        "entry": found["entry"],
        "at": found["at"],
        "by": found["by"],
        "kimi_prov": found["kimi_prov"],
        "switch": {
            "entry": state["to"],
            "phase": state["phase"],
            "under_way": open_switch.is_under_way(),
        }
        if state
        else None,
    }


def _describe_wait(phase: str, said: str) -> str:
    """Return what a host of a group waits for, from its supervisor; empty where all serve."""
    return "" if phase == group_state.SERVING else said or "not serving yet"


def _build_group(paths: Paths, plan: MachinePlan, unit: str) -> GroupStatus:
    """Return which hosts serve the model together, and their progress."""
    group, seen = groups.get_group(plan), group_state.read(paths.group_run)
    return {
        "name": group["name"],
        "rank": group["rank"],
        "head": groups.get_head(plan),
        "members": [{"host": row["host"], "address": row["address"]} for row in group["members"]],
        "unit": unit,
        "phase": cast("GroupPhase", seen.phase or "stopped"),
        "said": seen.said,
        "failed_rounds": seen.failed,
    }


def _build_placement(index: int, found: list[dict[str, Any]]) -> PlacementStatus:
    """Return where an instance runs; memory policies are listed with the commonest first."""
    policies: dict[str, int] = {}
    for process in found:
        for policy, areas in process["policies"].items():
            policies[policy] = policies.get(policy, 0) + areas
    told = [one["huge_bytes"] for one in found if one["huge_bytes"] is not None]
    return {
        "index": index,
        "cpus": sorted({one["cpus"] for one in found}),
        "policies": sorted(policies, key=lambda policy: (-policies[policy], policy)),
        "bytes_by_node": _sum_by_node(found),
        "threads": sum(count for one in found for count in one["threads"].values()),
        "huge_bytes": sum(told) if told else None,
    }


def _sum_by_node(placed: list[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for process in placed:
        for node, size in process["bytes_by_node"].items():
            total[node] = total.get(node, 0) + size
    return total


def main(argv: list[str]) -> int:
    """`status [--now]`: print one JSON object; `--now` has only what changes each second."""
    return answer(collect_changing(Paths()) if "--now" in argv else collect(Paths()))
