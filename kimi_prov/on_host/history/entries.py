"""Entries of the history: what an apply was, how it ended, and the files that it left.

An entry is `/var/lib/kimi/state/history/NNNN/entry.json`; `files/` beside it has a copy of each
file that a rollback needs. Keys, certificates, accounts, packages and the driver are not among
them.

Decides: when a machine goes back to what served before (what goes back, by `RESTORED` of
  `kimi_prov/contract/paths.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.state_files import HISTORY_ENTRY
from kimi_prov.on_host.history import applied
from kimi_prov.on_host.system import files, kept_state, plans
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths

SCHEMA = HISTORY_ENTRY.schema
APPLY, ROLLBACK, FOUND, TUNE = "apply", "rollback", "found", "tune"
# The results of an entry; None while the apply is under way.
DONE, FAILED, RETURNED, INTERRUPTED = "done", "failed", "returned", "interrupted"
# The number of entries in the list, without files: a few kilobytes each.
MAX_ENTRIES = 500
# Units beside the engine whose settings depend on the plan: its slowest step, its port, its
# program.
BESIDE = (
    unit_names.USAGE,
    unit_names.WATCHDOG,
    unit_names.IDLE_TIMER,
    unit_names.WAKE_SOCKET,
    unit_names.METRICS_TIMER,
    unit_names.NODE_EXPORTER,
    unit_names.DRIFT_TIMER,
)
# Units whose files are restored with a plan. The units of the web UI and the certificate stay as
# they are.
_UNITS = (
    *BESIDE,
    unit_names.IDLE,
    unit_names.WAKE,
    unit_names.METRICS,
    unit_names.DRIFT,
    unit_names.FETCH,
    unit_names.CONVERT,
    unit_names.STAGE,
    unit_names.WARM,
    unit_names.RAM_MOUNT,
    unit_names.PROXY,
    unit_names.FIREWALL,
    unit_names.SERVE_TEMPLATE,
    unit_names.RANK,
)
ENTRY = "entry.json"
_FILES = "files"
_BLANK: Mapping[str, Any] = {
    "schema": SCHEMA,
    "run": None,
    "restores": None,
    "ended_at": None,
    "result": None,
    "why": None,
    "returned_to": None,
    "serves": None,
    "gateway": None,
    "speed": None,
    "speed_before": None,
    "seconds_without_service": None,
    "checks": None,
    "plan_sha256": None,
    "decided_sha256": None,
    # Whether a person was told the result: by its own run, or by a later one.
    "told": True,
    "files": [],
    "links": [],
    "enabled": [],
}
# The fields of a row of the list, where it comes from another machine.
_TEXT, _COUNT = (str,), (int,)
_NUMBER = (int, float)
_LINE: Mapping[str, tuple[type, ...]] = {
    "started_at": _TEXT,
    "ended_at": _TEXT,
    "inventory": _TEXT,
    "kimi_prov": _TEXT,
    "why": _TEXT,
    "restores": _COUNT,
    "returned_to": _COUNT,
    "seconds_without_service": _NUMBER,
}
_SPEED = {"decode_tok_s": _NUMBER, "first_token_s": _NUMBER, "tokens": _COUNT, "rounds": _COUNT}
_SERVES = {
    **dict.fromkeys(("engine", "variant", "version", "env_name", "model", "revision"), _TEXT),
    "format": (str, type(None)),
    "context": _COUNT,
    "served_names": (list,),
}
_GATEWAY = {"address": (str, type(None)), "hosts": (list,)}
_PARTS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "by": {"user": _TEXT, "control_host": _TEXT},
    "serves": _SERVES,
    "gateway": _GATEWAY,
    "speed": _SPEED,
    "speed_before": _SPEED,
}


def format_now() -> str:
    """Return the time in the format of the history."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def list_numbers(paths: Paths) -> list[int]:
    """List the numbers of all entries, oldest first."""
    found = paths.history.glob(f"[0-9]*/{ENTRY}")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())


def find_folder(paths: Paths, number: int) -> Path:
    """Return the directory of an entry."""
    return paths.history / f"{number:04d}"


def read(paths: Paths, number: int) -> dict[str, Any]:
    """Return an entry; empty where there is none. Raises DamagedStateError."""
    return kept_state.read_file(find_folder(paths, number) / ENTRY, HISTORY_ENTRY)


def read_all(paths: Paths) -> list[dict[str, Any]]:
    """Return all entries, oldest first."""
    return [entry for entry in (read(paths, n) for n in list_numbers(paths)) if entry]


def read_last(paths: Paths) -> dict[str, Any]:
    """Return the newest entry; empty where there is none."""
    return next(iter(reversed(read_all(paths))), {})


def write(paths: Paths, entry: Mapping[str, Any]) -> None:
    """Write an entry atomically."""
    place = find_folder(paths, entry["number"])
    for directory in (paths.state, paths.history, place):
        files.make_directory(directory, 0o700)
    files.write_json(str(place / ENTRY), entry, mode=0o600)


def open_entry(
    paths: Paths, kind: str, run_of: Mapping[str, Any], **more: object
) -> dict[str, Any]:
    """Make the next entry, under way. `run_of`: user, control machine and version of the apply."""
    entry = {
        **_BLANK,
        "number": max(list_numbers(paths), default=0) + 1,
        "kind": kind,
        "run": run_of.get("run"),
        "started_at": format_now(),
        "by": run_of.get("by"),
        "inventory": run_of.get("inventory"),
        "kimi_prov": run_of.get("kimi_prov"),
        **more,
    }
    write(paths, entry)
    return entry


def from_other_machine(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of another machine as a row of the list, which cannot be rolled back to.

    What a rollback would write as root (files, links, enabled units) and the hash that finds an
    entry are left out. Raises ValueError for anything but an entry.
    """
    number, kind, result = (found.get(key) for key in ("number", "kind", "result"))
    known = kind in (APPLY, ROLLBACK, FOUND, TUNE) and result in (
        *(DONE, FAILED, RETURNED, INTERRUPTED),
        None,
    )
    if found.get("schema") != SCHEMA or not _has_kind(number, _COUNT) or not known:
        raise ValueError("it is no entry of a history")
    line = {key: found.get(key) for key in _LINE}
    parts = {key: found.get(key) for key in _PARTS}
    for key, value in line.items():
        if not _has_kind(value, _LINE[key]) and (value is not None or key == "started_at"):
            raise ValueError(f"its {key} has another form")
    for key, value in parts.items():
        fields = _PARTS[key]
        if value is None:
            continue
        if not isinstance(value, dict) or {*value} != {*fields}:
            raise ValueError(f"its {key} has another form")
        texts = [*(value.get("served_names") or ()), *(value.get("hosts") or ())]
        if not all(_has_kind(value[name], fields[name]) for name in fields) or not all(
            isinstance(name, str) for name in texts
        ):
            raise ValueError(f"its {key} has another form")
    ended = {"number": number, "kind": kind, "result": result or INTERRUPTED}
    return {**_BLANK, **line, **parts, **ended}


def _has_kind(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def list_restored_files(paths: Paths) -> list[Path]:
    """List the files that a rollback restores, as far as they exist."""
    own = [
        path
        for path in applied.list_unit_files(paths)
        if path.name in _UNITS or path.name == layout.SERVE_DROP_IN
    ]
    named = [paths.locate(name) for name in layout.RESTORED]
    return sorted([*own, *[path for path in named if path.is_file()]])


def capture_files(paths: Paths, entry: dict[str, Any]) -> dict[str, Any]:
    """Copy the present files into an entry; return it with `files`, `links` and `enabled`."""
    place = find_folder(paths, entry["number"]) / _FILES
    fresh = place.with_name(f"{_FILES}.new")
    shutil.rmtree(str(fresh), ignore_errors=True)
    rows = []
    for path in list_restored_files(paths):
        row = applied.describe_file(paths, path)
        copy = fresh / row["path"][1:]
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_atomic(copy, path.read_text(encoding="utf-8"), 0o600)
        rows.append({key: row[key] for key in ("path", "sha256", "owner", "group", "mode")})
    shutil.rmtree(str(place), ignore_errors=True)
    if fresh.is_dir():
        fresh.rename(place)
        files.sync_directory(str(place.parent))
    link = paths.locate(layout.ENGINE)
    document = applied.observe(paths)
    entry = {
        **entry,
        "files": rows,
        "links": [{"path": layout.ENGINE, "target": os.readlink(str(link))}]
        if link.is_symlink()
        else [],
        "enabled": list_enabled_units(paths),
        "serves": describe_served(paths),
        "gateway": _describe_gateway(paths),
        "plan_sha256": document["plan_sha256"],
        "decided_sha256": applied.hash_decided(document),
    }
    write(paths, entry)
    return entry


def list_enabled_units(paths: Paths) -> list[str]:
    """List the units of a plan that start at a boot."""
    links = [path for path in paths.units.glob("*.wants/*") if path.is_symlink()]
    return sorted(
        path.name for path in links if path.name in _UNITS or unit_names.is_serve(path.name)
    )


def _describe_gateway(paths: Paths) -> dict[str, Any] | None:
    """Describe shortly where the present plan sends requests; None where it is no gateway's."""
    plan = plans.read_plan(paths.plan)
    if not gateways.is_gateway(plan):
        return None
    hosts = [row["host"] for row in plan["gateway"]["hosts"]]
    return {"address": plan["gateway"]["address"], "hosts": hosts}


def describe_served(paths: Paths) -> dict[str, Any] | None:
    """Describe shortly what the present plan serves; None where it is a gateway's."""
    plan = plans.read_plan(paths.plan)
    if not plan or gateways.is_gateway(plan):
        return None
    model, engine = plan["model"], plan["engine"]
    return {
        "engine": engine["name"],
        "variant": engine["variant"],
        "version": engine["version"],
        "env_name": engine["env_name"],
        "model": model["name"],
        "revision": model["revision"],
        # A plan of an earlier version may lack this.
        "format": model.get("weights_format"),
        "context": model["context"],
        "served_names": model["served_names"],
    }


def describe_entry(entry: Mapping[str, Any]) -> str:
    """Describe what an entry serves."""
    found, gateway = entry.get("serves"), entry.get("gateway")
    if gateway:
        return f"a gateway to {', '.join(gateway['hosts']) or 'no machine'}"
    if not found:
        return "nothing"
    return (
        f"{found['model']} ({found['format'] or 'as published'}) by {found['engine']} "
        f"{found['version']}"
    )


def find_copy(paths: Paths, entry: Mapping[str, Any], name: str) -> Path:
    """Return where an entry keeps its copy of a file of the machine."""
    return find_folder(paths, entry["number"]) / _FILES / name[1:]


def read_plan(paths: Paths, entry: Mapping[str, Any]) -> Plan:
    """Return the plan that an entry was applied with; empty where it is not kept."""
    return plans.read_plan(find_copy(paths, entry, layout.PLAN))


def amend(paths: Paths, number: int, **more: object) -> None:
    """Add fields to an entry that is under way."""
    write(paths, {**read(paths, number), **more})


def remove_tree(path: Path) -> None:
    """Remove weights or an environment, the mark first: a partial one must not count."""
    for mark in (layout.MODEL_VERIFIED, layout.ENV_COMPLETE):
        (path / mark).unlink(missing_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    model = path.parent
    # The model's own directory is removed with its last revision.
    if str(model.parent).endswith(layout.MODELS) and model.is_dir() and not any(model.iterdir()):
        model.rmdir()


def has_files(paths: Paths, entry: Mapping[str, Any]) -> bool:
    """Return whether the files of an entry are still kept."""
    return bool(entry.get("files")) and (find_folder(paths, entry["number"]) / _FILES).is_dir()


def explain_not_restorable(paths: Paths, entry: Mapping[str, Any]) -> str | None:
    """Return why an entry cannot be restored; None where it can."""
    if not has_files(paths, entry):
        return "its files are not kept any more"
    plan = read_plan(paths, entry)
    if not plan:
        return "it has no plan"
    if gateways.is_gateway(plan):
        return "it is a gateway's: put the former settings into the inventory, and run apply"
    environment = f"{plan['engine']['env_dir']}/{layout.ENV_COMPLETE}"
    if not paths.locate(environment).exists():
        return f"its engine's environment is gone: {plan['engine']['env_dir']}"
    for directory in list_weights_folders(plan):
        if not paths.locate(f"{directory}/{layout.MODEL_VERIFIED}").exists():
            return f"its weights are gone: {directory}"
    return None


def list_weights_folders(plan: Plan) -> list[str]:
    """List the directories of weights that a plan needs on the disk; a gateway needs none."""
    if gateways.is_gateway(plan):
        return []
    weights = plan.get("weights") or {}
    rows = [plan.get("conversion"), weights.get("converted"), weights.get("draft")]
    return sorted({plan["model"]["dir"], *[row["dir"] for row in rows if row]})


def restore(paths: Paths, entry: Mapping[str, Any]) -> list[str]:
    """Restore the files, links and enabled units of an entry; return the paths that changed.

    Each file is replaced in one step, and a file that is equal already is left: a restore that was
    interrupted is completed by the next.
    """
    copies = find_folder(paths, entry["number"]) / _FILES
    wanted = {row["path"]: row for row in entry["files"]}
    lost = [name for name in wanted if not (copies / name[1:]).is_file()]
    if lost:
        raise HostError(f"entry {entry['number']} of the history has lost {lost[0]}")
    changed = []
    for name, row in sorted(wanted.items()):
        path = paths.locate(name)
        there = applied.describe_file(paths, path) if path.is_file() else {}
        if all(there.get(key) == row[key] for key in ("sha256", "owner", "group", "mode")):
            continue
        if not path.parent.is_dir():
            files.make_directory(path.parent, 0o755)
        content = find_copy(paths, entry, name).read_text(encoding="utf-8")
        files.write_atomic(path, content, int(row["mode"], 8), row["group"])
        changed.append(name)
    for row in entry["links"]:
        changed += _restore_links(paths, row)
    return changed


def list_surplus(paths: Paths, entry: Mapping[str, Any]) -> list[Path]:
    """List the files of a plan that exist and that an entry does not have."""
    wanted = {row["path"] for row in entry["files"]}
    return [
        path
        for path in list_restored_files(paths)
        if "/" + str(path.relative_to(paths.root)) not in wanted
    ]


def _restore_links(paths: Paths, row: Mapping[str, str]) -> list[str]:
    path = paths.locate(row["path"])
    if path.is_symlink() and os.readlink(str(path)) == row["target"]:
        return []
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(row["target"])
    new.rename(path)
    return [row["path"]]


def converge_enabled(paths: Paths, entry: Mapping[str, Any]) -> None:
    """Enable the units that were enabled then, and disable the others of a plan."""
    wanted, there = set(entry["enabled"]), set(list_enabled_units(paths))
    for verb, names in (("disable", there - wanted), ("enable", wanted - there)):
        if names:
            run("systemctl", verb, "--quiet", *sorted(names))


def prune(paths: Paths, keep: int, spare: Collection[int] = ()) -> list[int]:
    """Remove the files of all but the newest `keep` versions that served, and very old entries.

    `spare`: numbers of entries that a rollback may still need. Returns the numbers of the entries
    that cannot be restored any more. The newest entry stays.
    """
    rows = read_all(paths)
    versions: list[str] = []
    dropped = []
    for entry in reversed(rows):
        digest, whole = entry.get("decided_sha256"), bool(entry.get("files"))
        new = whole and digest not in versions and len(versions) < max(1, keep)
        if entry["result"] == DONE and new:
            versions.append(str(digest))
        elif entry["result"] is not None and whole and entry["number"] not in spare:
            # Another number has the same files already.
            shutil.rmtree(str(find_folder(paths, entry["number"]) / _FILES), ignore_errors=True)
            write(paths, {**entry, "files": []})
            dropped.append(int(entry["number"]))
    for entry in rows[:-MAX_ENTRIES]:
        shutil.rmtree(str(find_folder(paths, entry["number"])), ignore_errors=True)
    return sorted(dropped)
