"""The state after an apply: the document /var/lib/kimi/state/applied.json.

`observe` describes the present machine in the same form: differences between the two are drift.

Decides: what was applied, for history and drift.
Held by: tests/component/on_host/history/test_entries.py.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import gateways, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.unit_comparison import read_digest
from kimi_prov.on_host.endpoint import firewall, tls
from kimi_prov.on_host.keys import key_map, publish
from kimi_prov.on_host.probe import accounts, nvidia_smi, system
from kimi_prov.on_host.probe.software import Packages
from kimi_prov.on_host.system import files, kept_state, plans, started, units
from kimi_prov.on_host.system.applied_record import SCHEMA, amend, read, write
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.weights import manifest, prepared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths

__all__ = (
    "SCHEMA",
    "amend",
    "list_unit_files",
    "list_written",
    "observe",
    "read",
    "select_decided",
    "write",
)
# The decisions of an apply: if one differs from the last apply's, the apply gets an entry of its
# own.
DECIDED = ("plan_sha256", "files", "links", "engine", "weights", "instances", "kernel")
_LINKS = (layout.ENGINE, layout.WEB_ENV)
_SHOWN = ("LoadState", "ActiveState", "UnitFileState", "FragmentPath", "DropInPaths")
_MAX_BYTES = 64 << 20


def observe(
    paths: Paths, known: Mapping[str, Any] | None = None, failed: dict[str, str] | None = None
) -> dict[str, Any]:
    """Describe what kimi-prov wrote here and what it relies on, as it is now.

    `known`: an earlier document, whose packages and kernel settings are read whatever the present
    plan says. `failed`: is called with the name of a part that could not be read and the reason;
    such a part is null. Without it the error is raised.
    """
    machine = Machine(str(paths.root))
    plan = plans.read_plan(paths.plan)
    known = known or {}
    parts: dict[str, Callable[[], Any]] = {
        "plan_sha256": lambda: _hash_file(paths.plan),
        "files": lambda: _describe_files(paths),
        "links": lambda: _describe_links(paths),
        "mounts": lambda: _describe_mounts(machine),
        "units": _describe_units,
        "users": lambda: {
            n: _describe_account(row) for n, row in accounts.list_accounts(machine).items()
        },
        "members": lambda: accounts.list_members(machine),
        "packages": lambda: _read_packages(machine, plan, known.get("packages") or {}),
        "driver": lambda: _read_driver_version(machine),
        "kernel": lambda: _read_kernel_settings(machine, plan, known.get("kernel") or {}),
        "firewall": lambda: _read_firewall(paths),
        "key_digests": lambda: key_map.parse_map(files.read_text(paths.key_map)),
        "certificate_sha256": lambda: tls.compute_fingerprint(files.read_text(paths.tls_crt)),
        "engine": lambda: _describe_engine(plan),
        "weights": lambda: _describe_weights(paths, plan),
        "instances": lambda: _describe_instances(paths, plan),
    }
    found: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            found[name] = part()
        except (OSError, HostError, ValueError, LookupError, TypeError, AttributeError) as error:
            if failed is None:
                raise
            found[name], failed[name] = None, describe_error(error)
    return {**found, **publish.describe_keys(found["key_digests"] or {})}


def select_decided(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a document by which two applies differ, without what may change."""
    fixed = [
        row
        for row in document.get("files") or ()
        if not row["living"] and row["path"] != layout.ZIPAPP
    ]
    return {**{name: document.get(name) for name in DECIDED}, "files": fixed}


def hash_decided(document: Mapping[str, Any]) -> str:
    """Return the hash of the decisions of an apply."""
    return hashlib.sha256(json.dumps(select_decided(document), sort_keys=True).encode()).hexdigest()


def list_written(paths: Paths) -> list[Path]:
    """List the files that kimi-prov keeps on the machine, except environments and weights."""
    below = [
        path
        for path in paths.etc.rglob("*")
        if not (path.is_dir() or kept_state.is_kept_aside(path.name))
    ]
    among = [paths.locate(name) for name in (*layout.AMONG_OTHERS, layout.ZIPAPP, layout.ACME_HOOK)]
    there = [path for path in among if path.is_file() or path.is_symlink()]
    return sorted({*below, *there, *list_unit_files(paths)})


def list_unit_files(paths: Paths) -> list[Path]:
    """List our unit files, and our drop-ins of the engine's units."""
    own = [
        path
        for path in paths.units.glob("*kimi*")
        if unit_names.is_ours(path.name) and not path.is_dir()
    ]
    drop_ins = [
        path
        for unit in (unit_names.ALL_SERVE, unit_names.RANK)
        for path in paths.units.glob(f"{unit}.d/{layout.SERVE_DROP_IN}")
    ]
    return sorted([*own, *drop_ins])


def _describe_files(paths: Paths) -> list[dict[str, Any]]:
    rows = []
    for path in list_written(paths):
        # A temporary file of a write is gone by now.
        with contextlib.suppress(FileNotFoundError):
            rows.append(describe_file(paths, path))
    return rows


def describe_file(paths: Paths, path: Path) -> dict[str, Any]:
    """Describe one file; `sha256` is null where its content may change, or is a password."""
    name = "/" + str(path.relative_to(paths.root))
    about = path.lstat()
    living = any(fnmatch.fnmatch(name, pattern) for pattern in layout.LIVING)
    hidden = living or name in layout.UNHASHED or not stat.S_ISREG(about.st_mode)
    machine = Machine(str(paths.root))
    return {
        "path": name,
        "sha256": None if hidden else _hash_file(path),
        "owner": _find_account_name(machine, "/etc/passwd", about.st_uid),
        "group": _find_account_name(machine, "/etc/group", about.st_gid),
        "mode": f"{stat.S_IMODE(about.st_mode):04o}",
        "living": living,
    }


def _find_account_name(machine: Machine, database: str, number: int) -> str:
    for line in (machine.read(database) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return str(number)


def _hash_file(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.sha256(stream.read(_MAX_BYTES)).hexdigest()
    except OSError:
        return None


def _describe_mounts(machine: Machine) -> list[dict[str, Any]]:
    return [
        {"path": point, "device": row[0], "type": row[1], "options": row[2]}
        for point, row in sorted(system.list_mounts(machine, "1").items())
        if point == layout.ROOT or point.startswith(layout.ROOT + "/")
    ]


def _describe_units() -> dict[str, dict[str, Any]]:
    """Return our units by name, without those that run only for a single job."""
    names = [*unit_names.LASTING, unit_names.ALL_SERVE]
    return {
        name: {
            "enabled": row.get("UnitFileState", ""),
            "state": row.get("ActiveState", ""),
            "file": row.get("FragmentPath", ""),
            "drop_ins": sorted(row.get("DropInPaths", "").split()),
        }
        for name, row in sorted(units.read_properties(names, _SHOWN).items())
        if row.get("LoadState") not in ("not-found", None)
    }


def _describe_links(paths: Paths) -> list[dict[str, Any]]:
    return [
        {"path": name, "target": os.readlink(str(paths.locate(name)))}
        for name in _LINKS
        if paths.locate(name).is_symlink()
    ]


def _read_driver_version(machine: Machine) -> str | None:
    version: str | None = nvidia_smi.parse_module(
        machine.read("/proc/driver/nvidia/version") or ""
    )["version"]
    return version


def _describe_account(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    keys_of = ("uid", "gid", "home", "shell")
    return {key: row[key] for key in keys_of} if row else None


def _read_packages(machine: Machine, plan: Plan, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the versions of the plan's packages and of the driver's, and which are held.

    None where dpkg's list cannot be read.
    """
    there = Packages(machine)
    if not there.known:
        return None
    wanted = {str(name) for name in (*(plan.get("packages") or ()), *known.get("versions", ()))}
    driver = there.matching(r"(lib)?nvidia-.*|cuda-drivers.*")
    ours = {name: v for name, v in there.installed.items() if name in wanted}
    return {
        "versions": dict(sorted({**ours, **driver}.items())),
        "held": sorted(set(there.on_hold) & {*ours, *driver}),
    }


def amend_packages(paths: Paths) -> None:
    """Update the versions of packages that a command other than apply installed."""
    if known := read(paths).get("packages"):
        found = _read_packages(Machine(str(paths.root)), plans.read_plan(paths.plan), known)
        amend(paths, packages=found or known)


def amend_driver(paths: Paths) -> None:
    """Update the driver, its packages and its files after a command other than apply changed it."""
    if known := read(paths):
        amend_packages(paths)
        others = [row for row in known["files"] if row["path"] not in layout.DRIVER_FILES]
        own = [row for row in _describe_files(paths) if row["path"] in layout.DRIVER_FILES]
        amend(
            paths,
            driver=_read_driver_version(Machine(str(paths.root))),
            files=sorted((*others, *own), key=lambda row: str(row["path"])),
        )


def _read_kernel_settings(machine: Machine, plan: Plan, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present values of the kernel settings that the plan names."""
    found = system.describe_tunables(machine)
    tuning = None if gateways.is_gateway(plan) else plan.get("tuning")
    wanted = {*((tuning and tuning.get("sysctl")) or ()), *known.get("sysctl", ())}
    return {
        "sysctl": {
            name: (machine.read("/proc/sys/" + name.replace(".", "/")) or "").strip() or None
            for name in sorted(wanted)
        },
        "thp": found["thp"]["value"] if found["thp"] else None,
        "governor": found["governor"]["value"] if found["governor"] else None,
    }


def _read_firewall(paths: Paths) -> dict[str, Any]:
    """Return the loaded table without its counters, and our rules in ufw or firewalld."""
    text = firewall.read_table()
    return {
        "table": None if text is None else text.splitlines(),
        "table_sha256": None if text is None else firewall.normalize_table(text),
        "rules": kept_state.read(paths, layout.FIREWALL_STATE).get("rules") or [],
    }


def _describe_engine(plan: Plan) -> dict[str, Any] | None:
    engine = None if gateways.is_gateway(plan) else plan.get("engine")
    names = ("name", "variant", "version", "env_name", "env_dir", "locks")
    return {name: engine.get(name) for name in names} if engine else None


def _describe_weights(paths: Paths, plan: Plan) -> dict[str, Any] | None:
    """Return the served weights; `manifest_sha256` is the digest of their list of files."""
    # A gateway names the model of the hosts behind it.
    if gateways.is_gateway(plan) or not plan.get("model"):
        return None
    model = plan["model"]
    # A plan of an earlier version may have fewer parts.
    weights = plan.get("weights")
    converted = plan.get("conversion") or (weights and weights.get("converted"))
    draft = weights and weights.get("draft")
    folder = prepared.get_folder(plan)
    return {
        **({"prepared_dir": folder} if folder else {}),
        "model": model["name"],
        "revision": model["revision"],
        "format": model.get("weights_format"),
        "dir": model["dir"],
        "serve_dir": model.get("serve_dir"),
        "converted_dir": converted.get("dir") if converted else None,
        "draft_dir": draft.get("dir") if draft else None,
        "manifest_sha256": _hash_file(paths.locate(f"{model['dir']}/{manifest.NAME}")),
        "verified": paths.locate(f"{model['dir']}/{layout.MODEL_VERIFIED}").exists(),
    }


def _describe_instances(paths: Paths, plan: Plan) -> list[dict[str, Any]]:
    """Return the units that run the engine, with the config digest in their drop-in."""
    places = started.UnitPaths(str(paths.root))
    return [
        {
            "unit": unit_names.get_engine_unit(row),
            "stamp": read_digest(files.read_text(places.drop_in(unit_names.get_engine_unit(row)))),
        }
        for row in plan.get("instances") or ()
    ]
