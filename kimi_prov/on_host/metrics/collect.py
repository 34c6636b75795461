"""`metrics`: write kimi-prov's metrics of this machine to /var/lib/kimi/metrics/kimi.prom.

The node exporter serves them beside its own metrics. A part that cannot be read is left out and
counted; the file is replaced as a whole. This runs twice a minute beside an engine, so modules that
take long to import are imported where they are needed.

Decides: metrics: their port, networks and what is behind it (what kimi-prov writes).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import gateways, groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.contract.state_files import HISTORY_ENTRY
from kimi_prov.on_host.endpoint import certificate
from kimi_prov.on_host.metrics import gpus, instances
from kimi_prov.on_host.probe import clock, gpu_faults, gpu_load, nvidia_smi
from kimi_prov.on_host.system import boot, group_state, kept_state, plans, units
from kimi_prov.on_host.system.exposition import Sample, render
from kimi_prov.on_host.system.files import (
    make_directory,
    read_json,
    read_text,
    write_atomic,
    write_json,
)
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.ranges import Range

HELPS: dict[str, str] = {
    "kimi_plan_info": "The plan that was applied last: its hash, model, engine and version.",
    "kimi_weights_verified": "1 while all weights are verified.",
    "kimi_weights_bytes": "Bytes of the weights.",
    "kimi_ram_disk_planned": "1 where the weights are to be on a RAM disk.",
    "kimi_ram_disk_filled": "1 while the verified weights are on the RAM disk.",
    "kimi_certificate_begins_timestamp_seconds": "Begin of the proxy's certificate.",
    "kimi_certificate_expires_timestamp_seconds": "End of the proxy's certificate.",
    "kimi_stopped": "1 while the machine is stopped on purpose, or asleep.",
    **instances.HELPS,
    "kimi_expected_decode_tokens_per_second": "Predicted speed of one request, as a range.",
    "kimi_measured_decode_tokens_per_second": "Speed of one request at the last speed test.",
    "kimi_expected_concurrency": "Requests at once that the plan is made for.",
    **gpus.HELPS,
    "kimi_driver_changed": "1 if the installed NVIDIA driver is not the one that runs.",
    "kimi_driver_info": "Versions of the NVIDIA driver that runs and that is installed.",
    "kimi_clock_synchronised": "1 while a time server keeps the kernel's clock.",
    "kimi_group_member_up": "1 while a host of the group is connected.",
    "kimi_drift_findings": "Differences that kimi-drift.timer found last.",
    "kimi_updates_waiting": "Packages of the operating system that wait, by kind.",
    "kimi_metrics_parts_failed": "Parts of this file that could not be read.",
    "kimi_metrics_written_timestamp_seconds": "Time when this file was written.",
}
_FAULTS = (OSError, HostError, ValueError, LookupError, TypeError, AttributeError)
# apt's lists change no faster, and reading them takes a second of CPU time.
_UPDATES_S = 3600
_KINDS = ("security", "kernel", "driver")
_DPKG = "/var/lib/dpkg/status"
_ASK_S = 20.0
_KNOWN_ENTRIES = 20


_OF_GATEWAY = ("certificate", "clock", "drift", "updates")
_OF_MACHINE = (
    *("planned", "weights", "certificate", "engines", "gpus", "driver", "clock", "group"),
    *("drift", "updates"),
)


class Look:
    """One reading of the machine: the plan, the state of the last reading, and the samples."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.machine = Machine(str(paths.root))
        self.plan = plans.read_machine_plan(paths.plan)
        self.kept = read_json(paths.metrics_state)
        self.samples: list[Sample] = []
        self.failed: dict[str, str] = {}

    def add_part(self, name: str, part: Callable[[], list[Sample]]) -> None:
        """Add the samples of a part, or why there are none."""
        try:
            self.samples += part()
        except _FAULTS as error:
            self.failed[name] = describe_error(error)

    def planned(self) -> list[Sample]:
        """Add the plan's facts, and the measured speed.

        Speeds are those of clients, which only the head of a group serves.
        """
        plan, serves = self.plan, groups.serves_clients(self.plan)
        speed = plan["throughput"] if serves else None
        info = {
            "hash": hashlib.sha256(read_text(self.paths.plan).encode()).hexdigest()[:12],
            "model": plan["model"]["name"],
            "engine": plan["engine"]["name"],
            "version": plan["engine"]["version"],
        }
        bounds = speed and speed.get("decode_tok_s")
        return [
            Sample("kimi_plan_info", 1, info),
            Sample("kimi_weights_bytes", plan["model"]["bytes"]),
            Sample("kimi_ram_disk_planned", bool(plan["ram_disk"]["enabled"])),
            Sample("kimi_expected_concurrency", speed and speed.get("concurrency")),
            *(
                Sample("kimi_expected_decode_tokens_per_second", value, {"bound": bound})
                for bound, value in _list_bounds(bounds)
            ),
            Sample("kimi_measured_decode_tokens_per_second", self._measured() if serves else None),
        ]

    def _measured(self) -> float | None:
        """Return the speed that the last switch measured."""
        # The names of entries are numbers of at least four digits.
        folders = sorted(self.paths.history.glob("*"), key=lambda path: (len(path.name), path.name))
        for folder in folders[: -_KNOWN_ENTRIES - 1 : -1]:
            # `history` tells a damaged entry.
            with contextlib.suppress(kept_state.DamagedStateError):
                speed = kept_state.read_file(folder / "entry.json", HISTORY_ENTRY).get("speed")
                if speed:
                    return float(speed["decode_tok_s"])
        return None

    def weights(self) -> list[Sample]:
        """Add whether the weights and their copy in memory are verified."""
        mark = self.paths.locate(f"{self.plan['model']['dir']}/{layout.MODEL_VERIFIED}")
        found = [Sample("kimi_weights_verified", mark.exists())]
        disk = self.plan["ram_disk"]
        # The mark is written last there too; a RAM disk that was mounted again has none.
        copy = self.paths.locate(f"{disk['files_dir']}/{layout.MODEL_VERIFIED}")
        filled = (
            disk["enabled"] and os.path.ismount(self.paths.locate(layout.RAM)) and copy.exists()
        )
        return [*found, Sample("kimi_ram_disk_filled", filled)]

    def certificate(self) -> list[Sample]:
        """Add the validity of the certificate."""
        found = certificate.read(read_text(self.paths.tls_crt))
        begins, ends = (found.not_before, found.not_after) if found else (None, None)
        return [
            Sample("kimi_certificate_begins_timestamp_seconds", begins),
            Sample("kimi_certificate_expires_timestamp_seconds", ends),
        ]

    def engines(self) -> list[Sample]:
        """Add the state of the engine's instances."""
        names = [unit_names.get_engine_unit(row) for row in self.plan["instances"]]
        found, keep = instances.collect(
            self.plan,
            units.read_properties(names, instances.SHOWN),
            self.kept.get("instances") or {},
            time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000,
            boot.read_boot_id(self.machine),
        )
        self.kept["instances"] = keep
        return [*found, Sample("kimi_stopped", self.paths.stopped.exists())]

    def _has_gpus(self) -> bool:
        metrics = self.plan.get("metrics")
        return bool(metrics and metrics["gpus"])

    def gpus(self) -> list[Sample]:
        """Add the metrics of the GPUs, where the plan has some."""
        if not self._has_gpus():
            return []
        planned = {gpu for row in self.plan["instances"] for gpu in row.get("gpus") or ()}
        cards, _ = gpu_load.read(_ASK_S)
        kept = self.kept.get(gpu_faults.READINGS)
        samples, self.kept[gpu_faults.READINGS] = gpus.collect(
            len(planned), cards or [], _ask, kept, time.time()
        )
        return samples

    def driver(self) -> list[Sample]:
        """Add whether the driver that runs is the one that is installed."""
        if not self._has_gpus():
            return []
        text = self.machine.read("/proc/driver/nvidia/version")
        running = nvidia_smi.parse_module(text)["version"] or ""
        installed = self._driver_installed()
        label = {"running": running, "installed": installed}
        changed = bool(running and installed and running != installed)
        return [Sample("kimi_driver_changed", changed), Sample("kimi_driver_info", 1, label)]

    def _driver_installed(self) -> str:
        """Return the driver's version from dpkg, queried again when its list has changed."""
        changed = os.stat(str(self.paths.locate(_DPKG))).st_mtime
        kept = self.kept.get("driver") or {}
        if kept.get("changed") != changed:
            from kimi_prov.on_host.driver import apt, steps  # noqa: PLC0415  (a tenth of a second)

            family = steps.select_driver_packages(apt.list_installed())
            version = steps.find_main_version(family) if family else ""
            kept = self.kept["driver"] = {"changed": changed, "version": version}
        return str(kept["version"])

    def clock(self) -> list[Sample]:
        """Add whether the clock is synchronised; a container may not read this."""
        return [
            Sample("kimi_clock_synchronised", clock.describe_clock(self.machine)["synchronized"])
        ]

    def group(self) -> list[Sample]:
        """Add which hosts of a group are connected to the head's supervisor."""
        group = self.plan.get("group")
        if not group or not groups.serves_clients(self.plan):
            return []
        told = run("ss", "-Htn", "state", "established", f"sport = :{group['control_port']}")
        peers = told.stdout
        runs = bool(group_state.read(self.paths.group_run).phase)
        return [
            Sample(
                "kimi_group_member_up",
                runs if rank == 0 else _is_connected_from(row["address"], peers),
                {"member": row["host"]},
            )
            for rank, row in enumerate(group["members"])
        ]

    def drift(self) -> list[Sample]:
        """Add the last result of the drift timer."""
        if not (self.plan.get("drift") or {}).get("timer"):
            return []
        return [Sample("kimi_drift_findings", read_json(self.paths.drift_state).get("differences"))]

    def updates(self) -> list[Sample]:
        """Add the waiting updates of the operating system, as of the last hour."""
        if not self.machine.live:
            return []
        kept, now = self.kept.get("updates") or {}, time.time()
        if not 0 <= now - float(kept.get("at") or 0) < _UPDATES_S:
            from kimi_prov.on_host.update import waiting  # noqa: PLC0415  (a tenth of a second)

            rows = waiting.list_packages()
            counts = None
            if rows is not None:
                counts = {kind: sum(row.kind == kind for row in rows) for kind in _KINDS}
            kept = self.kept["updates"] = {"at": now, "counts": counts}
        counts = kept.get("counts") or {}
        return [Sample("kimi_updates_waiting", counts[kind], {"kind": kind}) for kind in counts]


def _ask(argv: Sequence[str]) -> str | None:
    done = run(*argv, timeout=_ASK_S)
    return done.stdout if done.returncode == 0 else None


def _is_connected_from(address: str | None, connections: str) -> bool:
    """Return whether one of these connections comes from an address, as `ss` writes them."""
    peers = (line.split()[-1] for line in connections.splitlines() if line.split())
    found = {peer.rpartition(":")[0].strip("[]").replace("::ffff:", "") for peer in peers}
    return bool(address) and address in found


def _list_bounds(speed: Range | None) -> list[tuple[str, float | None]]:
    if not speed:
        return [("low", None), ("expected", None), ("high", None)]
    return [("low", speed["low"]), ("expected", speed["expected"]), ("high", speed["high"])]


def collect(paths: Paths) -> dict[str, Any]:
    """Read all parts; return {"text", "kept", "failed"}."""
    look = Look(paths)
    for name in _OF_GATEWAY if gateways.is_gateway(plans.read_plan(paths.plan)) else _OF_MACHINE:
        look.add_part(name, getattr(look, name))
    look.samples += [
        Sample("kimi_metrics_parts_failed", len(look.failed)),
        Sample("kimi_metrics_written_timestamp_seconds", round(time.time(), 3)),
    ]
    return {"text": render(look.samples, HELPS), "kept": look.kept, "failed": look.failed}


def write(paths: Paths) -> Mapping[str, str]:
    """Write the file; return the failed parts with their reasons. Raises HostError, OSError."""
    if not (plans.read_machine_plan(paths.plan) or {}).get("metrics"):
        raise HostError("no metrics are planned on this machine", "set kimi_metrics: true")
    found = collect(paths)
    # The exporter runs as a user of its own.
    make_directory(paths.metrics, 0o755)
    write_atomic(paths.metrics_file, found["text"], 0o644)
    write_json(str(paths.metrics_state), found["kept"], durable=False, mode=0o600)
    failed: Mapping[str, str] = found["failed"]
    return failed


def main(argv: list[str]) -> int:
    """`metrics`: write the file; parts that could not be read are named on standard error."""
    del argv
    os.umask(0o022)
    for name, why in write(Paths()).items():
        print(f"{name}: {why}", file=sys.stderr)
    return 0
