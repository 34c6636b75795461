"""`clean [--remove]`: what no restorable version needs: environments, pythons, weights.

A restorable version is the plan in place, or an entry of the history with its files.

Decides: what `clean` frees.
Applied by: playbooks/clean.yml.
Held by: tests/component/on_host/history/test_clean.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.history import entries, open_switch
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import count_disk_bytes, read_text
from kimi_prov.on_host.weights import prepared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from kimi_prov.contract.documents.clean import CleanedHost, CleanItem, CleanKind
    from kimi_prov.contract.documents.plan import Plan


def list_unneeded(paths: Paths) -> list[CleanItem]:
    """List what can be removed: `kind`, `path`, `bytes` on the disk, and `of`, its description."""
    found_plans = [plan for plan in _list_plans(paths) if plan]
    if not found_plans:
        raise HostError(*NOT_APPLIED)
    environments = {p["engine"]["env_name"] for p in found_plans if not gateways.is_gateway(p)}
    weights = {
        directory for plan in found_plans for directory in entries.list_weights_folders(plan)
    }
    found = [
        _describe_item(paths, "environment", path, path.name)
        for path in _list_folder(paths.locate(layout.ENGINES))
        if path.name not in environments
    ]
    kept = [
        path for path in _list_folder(paths.locate(layout.ENGINES)) if path.name in environments
    ]
    pythons = _list_pythons([*kept, *_list_folder(paths.locate(layout.WEB_ENVS))])
    found += [
        _describe_item(paths, "python", path, path.name)
        for path in _list_folder(paths.locate(layout.PYTHONS))
        if path.name not in pythons
    ]
    for model in _list_folder(paths.locate(layout.MODELS)):
        found += [
            _describe_item(paths, "weights", path, f"{model.name} {path.name}")
            for path in _list_folder(model)
            if _find_owner_name(paths, path) not in weights
        ]
    needed = {folder for plan in found_plans for folder in prepared.list_needed_folders(plan)}
    return found + _list_prepared(paths, needed)


def _list_prepared(paths: Paths, needed: Collection[str]) -> list[CleanItem]:
    """List folders of prepared weights that no version needs, and of others what none can copy.

    That is what was put aside, what has an older key, and what an engine wrote that is no longer
    there.
    """
    items: list[CleanItem] = []
    for folder in prepared.list_folders(paths):
        if _find_owner_name(paths, folder) not in needed:
            items.append(_describe_item(paths, "prepared", folder, f"prepared {folder.name}"))
            continue
        kept = {paths.locate(path) for path in needed}
        items.extend(
            {
                "kind": "prepared",
                "path": _find_owner_name(paths, row.path),
                "bytes": row.bytes,
                "of": f"{_describe_file(row, row.path.parent in kept)} {row.path.name}",
            }
            for row in prepared.list_files(folder)
            if not row.counts or row.path.parent not in kept
        )
    return items


def _describe_file(row: prepared.Stored, engine: bool) -> str:
    if row.aside:
        return "damaged"
    return "older key" if engine else "no engine"


def remove_unneeded(paths: Paths, *, remove: bool) -> CleanedHost:
    """Return what no version needs, and remove it where requested.

    Raises HostError while a switch is open.
    """
    state = open_switch.read(paths)
    if state:
        raise HostError(
            f"a switch is open on this machine since {state.get('since')}",
            "end it first: run `kimi-prov apply` again",
        )
    items = list_unneeded(paths)
    for item in items if remove else []:
        _remove_item(paths, item)
    return {
        "ok": True,
        "items": items,
        "bytes": sum(item["bytes"] for item in items),
        "removed": remove,
        "keeps": [entries.describe_entry(entry) for entry in _list_kept_entries(paths)],
    }


def _remove_item(paths: Paths, item: CleanItem) -> None:
    path = paths.locate(item["path"])
    # Of a folder of prepared weights that is needed, only files are listed.
    if item["kind"] == "prepared" and path.parent != paths.locate(layout.PREPARED):
        prepared.remove_file(path)
    else:
        entries.remove_tree(path)


def _list_kept_entries(paths: Paths) -> list[dict[str, Any]]:
    return [
        entry
        for entry in entries.read_all(paths)
        if not entries.explain_not_restorable(paths, entry)
    ]


def _list_plans(paths: Paths) -> Iterable[Plan]:
    yield plans.read_plan(paths.plan)
    for entry in entries.read_all(paths):
        yield entries.read_plan(paths, entry)


def _list_folder(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _list_pythons(environments: Iterable[Path]) -> set[str]:
    """Name the bundled interpreters of these environments."""
    pattern = re.compile(rf"^home = {re.escape(layout.PYTHONS)}/([^/\n]+)/", re.MULTILINE)
    found = (pattern.search(read_text(path / "pyvenv.cfg")) for path in environments)
    return {match[1] for match in found if match}


def _describe_item(paths: Paths, kind: CleanKind, path: Path, of: str) -> CleanItem:
    return {
        "kind": kind,
        "path": _find_owner_name(paths, path),
        "bytes": count_disk_bytes(path),
        "of": of,
    }


def _find_owner_name(paths: Paths, path: Path) -> str:
    return "/" + str(path.relative_to(paths.root))


def main(argv: list[str]) -> int:
    """`clean [--remove]`: print one JSON object."""
    return answer(remove_unneeded(Paths(), remove="--remove" in argv))
