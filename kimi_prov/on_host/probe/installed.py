"""What kimi-prov has already installed on the machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.state_files import KEPT
from kimi_prov.contract.unit_comparison import parse_form
from kimi_prov.on_host.probe import accounts, served
from kimi_prov.on_host.system import boot, environments, kept_state, started
from kimi_prov.on_host.system import units as systemd
from kimi_prov.on_host.system.files import count_disk_bytes

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.kimi import (
        FileFacts,
        KimiFacts,
        ModelFacts,
        ServingFacts,
    )
    from kimi_prov.on_host.system.machine import Machine

# Services that one of our packages brings; whether they ran before is recorded for `destroy`.
_SERVICES = (unit_names.HAPROXY, unit_names.SITE_NODE_EXPORTER)
_UNITS = (
    *_SERVICES,
    unit_names.FIREWALLD,
    unit_names.ACME_TIMER,
    unit_names.CONVERT,
    unit_names.DRIFT_TIMER,
    unit_names.WATCHDOG,
    unit_names.IDLE_TIMER,
    unit_names.WAKE_SOCKET,
    unit_names.FETCH,
    unit_names.FIREWALL,
    unit_names.GATEWAY_ADDRESS,
    unit_names.METRICS_TIMER,
    unit_names.NODE_EXPORTER,
    unit_names.PROMETHEUS,
    unit_names.PROXY,
    unit_names.WEB,
    unit_names.ALL_SERVE,
    unit_names.RANK,
    unit_names.STAGE,
    unit_names.WARM,
    unit_names.FABRIC_MANAGER,
    unit_names.PERSISTENCED,
    unit_names.RAM_MOUNT,
)
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "ControlPID")


def read_units(machine: Machine) -> dict[str, dict[str, str]]:
    """Return the state of our units and of firewalld: systemd's properties by unit name."""
    text = machine.run(systemd.build_show_command(_UNITS, _PROPERTIES))
    return {
        name: row
        for name, row in systemd.parse_properties(text or "").items()
        if row.get("LoadState") not in ("not-found", "masked", None)
    }


def describe_installation(machine: Machine, states: dict[str, dict[str, str]]) -> KimiFacts:
    """Return our engines, models, plan and program; null where access is denied."""
    pythons = _list_pythons(machine)
    engines = _map_environments(machine, paths.ENGINES, pythons)
    pages = _map_environments(machine, paths.WEB_ENVS, pythons)
    pages.pop(paths.WEB_ENV_NAME, None)
    return {
        "plan_sha256": _hash_file(machine, paths.PLAN),
        "target_sha256": _hash_file(machine, paths.ZIPAPP),
        "engine_envs": sorted(engines),
        "pythons": pythons,
        "tools": [
            name
            for name in _list_complete(machine, paths.TOOLS)
            if environments.find_fault(machine, f"{paths.TOOLS}/{name}") is None
        ],
        "engine_pythons": _list_bundled_pythons(engines),
        "engine_link": _read_link(machine, paths.ENGINE),
        "kept_envs": _list_restorable_environments(machine),
        "switch_open": machine.exists(paths.SWITCH),
        "web_envs": sorted(pages),
        "web_pythons": _list_bundled_pythons(pages),
        "web_link": _read_link(machine, paths.WEB_ENV),
        "models": _list_folders(machine, f"{paths.MODELS}/*/*"),
        "prepared": _list_folders(machine, f"{paths.PREPARED}/*"),
        "models_verified": [
            os.path.dirname(path)
            for path in machine.glob(f"{paths.MODELS}/*/*/{paths.MODEL_VERIFIED}")
        ],
        "ram_disk_mounted": os.path.ismount(machine.path(paths.RAM)) if machine.live else None,
        "files": {path: _read_file(machine, path) for path in paths.MANAGED},
        "user": _has_user(machine, paths.USER),
        "proxy_user": _has_user(machine, paths.PROXY_USER),
        "acme_user": _has_user(machine, paths.ACME_USER),
        "accounts": accounts.list_accounts(machine),
        "groups": accounts.list_groups(machine),
        "node_exporter_ours": machine.exists(paths.NODE_EXPORTER_STATE),
        "forward_proxy": machine.exists(paths.FORWARD_PROXY),
        "before": _read_kept(machine, paths.BEFORE),
        "driver": _read_driver_record(machine),
        "nccl": _read_record(machine, paths.NCCL_STATE),
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
        "served": served.read_served(_read_record(machine, paths.PLAN)),
        "serving": _describe_serving(machine, states),
    }


def _list_complete(machine: Machine, folder: str) -> list[str]:
    """Return the directories in `folder` that are complete, by name."""
    return [path.split("/")[-2] for path in machine.glob(f"{folder}/*/{paths.ENV_COMPLETE}")]


def _list_pythons(machine: Machine) -> list[str]:
    """Return the bundled interpreters that run, by the name of their directory."""
    return [
        name
        for name in _list_complete(machine, paths.PYTHONS)
        if any(
            environments.ask_version(machine, python) is not None
            for python in machine.glob(f"{paths.PYTHONS}/{name}/*/bin/python3")
        )
    ]


def _map_environments(machine: Machine, folder: str, pythons: list[str]) -> dict[str, str | None]:
    """Map each whole environment in `folder` to its bundled interpreter, None for another one.

    A broken one counts as incomplete, so that it is made again: also one whose interpreter does not
    run.
    """
    found: dict[str, str | None] = {}
    for name in _list_complete(machine, folder):
        text = machine.read(f"{folder}/{name}/pyvenv.cfg") or ""
        brought = re.search(rf"^home = {re.escape(paths.PYTHONS)}/([^/\n]+)/", text, re.MULTILINE)
        usable = brought is None or brought[1] in pythons
        if usable and environments.find_fault(machine, f"{folder}/{name}") is None:
            found[name] = brought[1] if brought else None
    return found


def _list_bundled_pythons(envs: dict[str, str | None]) -> dict[str, str]:
    return {name: python for name, python in sorted(envs.items()) if python}


def _describe_serving(
    machine: Machine, states: dict[str, dict[str, str]]
) -> dict[str, ServingFacts]:
    """Return what each running engine depends on; null where that is no longer known.

    An engine whose process we may not read is left out.
    """
    places = started.UnitPaths(machine.root or "/")
    found: dict[str, ServingFacts] = {}
    for unit, row in sorted(states.items()):
        if unit_names.is_serve(unit) and started.get_pid(row) != "0":
            stamp = started.read_running_digest(started.get_pid(row), places)
            if stamp is not None:
                try:
                    text = started.find_unit_text(stamp, unit, places)
                except OSError:  # Only root may read the stored copies.
                    continue
                found[unit] = {"stamp": stamp, "form": None if text is None else parse_form(text)}
    return found


def _read_record(machine: Machine, path: str) -> dict[str, Any] | None:
    """Read a record of an earlier apply; None where there is none."""
    try:
        found = json.loads(machine.read(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _read_kept(machine: Machine, path: str) -> kept_state.State | None:
    """Read a file that nobody can make again; None where there is none, or access is denied."""
    try:
        return kept_state.read_file(Path(machine.path(path)), KEPT[path]) or None
    except kept_state.DamagedStateError as error:
        if isinstance(error.__cause__, PermissionError):
            return None
        raise


def _read_driver_record(machine: Machine) -> dict[str, Any] | None:
    """Read what an earlier apply did to the driver.

    `restarted`: the version for which the machine restarted itself and that has not answered yet,
    and whether that restart is `over`.
    """
    state = _read_kept(machine, paths.DRIVER_STATE)
    restarted = (state or {}).get("restarted")
    if state is None or not isinstance(restarted, dict):
        return state
    over = restarted.get("boot") != boot.read_boot_id(machine)
    return {**state, "restarted": {"version": restarted.get("version"), "over": over}}


def _list_restorable_environments(machine: Machine) -> list[str]:
    """Return the environments of the versions that can be restored; only root sees them."""
    found = set()
    for path in machine.glob(f"{paths.HISTORY}/*/files{paths.PLAN}"):
        name = ((_read_record(machine, path) or {}).get("engine") or {}).get("env_name")
        found |= {name} if isinstance(name, str) else set()
    return sorted(found)


def _list_folders(machine: Machine, pattern: str) -> list[ModelFacts]:
    """Return the bytes that each folder takes on the disk, unfinished files included."""
    return [
        {"dir": path, "disk_bytes": count_disk_bytes(machine.path(path))}
        for path in machine.glob(pattern)
        if os.path.isdir(machine.path(path))
    ]


def _read_link(machine: Machine, path: str) -> str | None:
    try:
        return os.path.basename(os.readlink(machine.path(path)).rstrip("/"))
    except OSError:
        return None


def _hash_file(machine: Machine, path: str) -> str | None:
    try:
        with open(machine.path(path), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def _read_file(machine: Machine, path: str) -> FileFacts | None:
    """Return content, owner and mode of a regular file; None for anything else."""
    try:
        descriptor = os.open(machine.path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                return None
            digest = hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None
    return {
        "sha256": digest,
        "owner": _find_account_name(machine, "/etc/passwd", about.st_uid),
        "group": _find_account_name(machine, "/etc/group", about.st_gid),
        "mode": f"{stat.S_IMODE(about.st_mode):04o}",
    }


def _find_account_name(machine: Machine, database: str, number: int) -> str:
    """Return a user's or group's name; without a name, its number."""
    for line in (machine.read(database) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return str(number)


def _has_user(machine: Machine, user: str) -> bool:
    lines = (machine.read("/etc/passwd") or "").splitlines()
    return any(line.startswith(f"{user}:") for line in lines)
