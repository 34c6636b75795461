"""What of ours is on the machine already."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from kimi_prov.contract import paths
from kimi_prov.contract.unit_form import form
from kimi_prov.on_host.engine import started

if TYPE_CHECKING:
    from kimi_prov.on_host.system.machine import Machine

# Services that a package of ours brings along; whether they ran before is kept for `destroy`.
_SERVICES = ("haproxy.service",)
_UNITS = (
    *_SERVICES,
    "firewalld.service",
    "kimi-convert.service",
    "kimi-fetch.service",
    "kimi-firewall.service",
    "kimi-proxy.service",
    "kimi-serve@*.service",
    "kimi-stage.service",
    "kimi-warm.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "srv-kimi-ram.mount",
)


def units(machine: Machine) -> Dict[str, Dict[str, str]]:
    """State of our units and of firewalld: name to the properties that systemd tells."""
    text = machine.run(
        [
            "systemctl",
            "show",
            "--property=Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,ControlPID",
            "--",
            *_UNITS,
        ]
    )
    found: Dict[str, Dict[str, str]] = {}
    for block in (text or "").split("\n\n"):
        row = dict(line.partition("=")[::2] for line in block.splitlines())
        if row.get("Id") and row.get("LoadState") not in ("not-found", "masked", None):
            found[row["Id"]] = row
    return found


def kimi(machine: Machine, states: Dict[str, Dict[str, str]]) -> Dict[str, Any]:
    """Engines, models, plan and program of ours; null where we may not look."""
    return {
        "plan_sha256": _sha256(machine, paths.PLAN),
        "target_sha256": _sha256(machine, paths.ZIPAPP),
        "engine_envs": [
            path.split("/")[-2] for path in machine.glob(f"{paths.ENGINES}/*/{paths.ENV_COMPLETE}")
        ],
        "engine_link": _link(machine, paths.ENGINE),
        "models": _models(machine),
        "models_verified": [
            os.path.dirname(path)
            for path in machine.glob(f"{paths.MODELS}/*/*/{paths.MODEL_VERIFIED}")
        ],
        "ram_disk_mounted": os.path.ismount(machine.path(paths.RAM)) if machine.live else None,
        "user": _has_user(machine),
        "before": _kept(machine, f"{paths.STATE}/before.json"),
        "driver": _kept(machine, paths.DRIVER_STATE),
        "nccl": _kept(machine, paths.NCCL_STATE),
        "services": {
            name: {
                "enabled": states[name].get("UnitFileState") == "enabled",
                "active": states[name].get("ActiveState") == "active",
            }
            for name in _SERVICES
            if name in states
        },
        "units": {
            name: row.get("ActiveState") for name, row in sorted(states.items()) if "kimi" in name
        },
        "serving": _serving(machine, states),
    }


def _serving(machine: Machine, states: Dict[str, Dict[str, str]]) -> Dict[str, Any]:
    """Tell what each running engine depends on; null where that is not known any more.

    An engine whose process we may not look at is left out.
    """
    places = started.Places(machine.root or "/")
    found: Dict[str, Any] = {}
    for unit, row in sorted(states.items()):
        if unit.startswith("kimi-serve@") and started.pid_of(row) != "0":
            stamp = started.running_stamp(started.pid_of(row), places)
            if stamp is not None:
                text = started.unit_of(stamp, unit, places)
                found[unit] = {"stamp": stamp, "form": None if text is None else form(text)}
    return found


def _kept(machine: Machine, path: str) -> Optional[Dict[str, Any]]:
    """Read what an apply kept of what it found or did; None where there is nothing."""
    try:
        found = json.loads(machine.read(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _models(machine: Machine) -> List[Dict[str, Any]]:
    """Bytes that each model takes on the disk, unfinished downloads included."""
    return [
        {"dir": path, "disk_bytes": _disk_bytes(machine.path(path))}
        for path in machine.glob(f"{paths.MODELS}/*/*")
        if os.path.isdir(machine.path(path))
    ]


def _disk_bytes(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _link(machine: Machine, path: str) -> Optional[str]:
    try:
        return os.path.basename(os.readlink(machine.path(path)).rstrip("/"))
    except OSError:
        return None


def _sha256(machine: Machine, path: str) -> Optional[str]:
    try:
        with open(machine.path(path), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def _has_user(machine: Machine) -> bool:
    lines = (machine.read("/etc/passwd") or "").splitlines()
    return any(line.startswith(f"{paths.USER}:") for line in lines)
