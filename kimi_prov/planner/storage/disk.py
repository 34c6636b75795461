"""The disk space that weights and engine need, and whether the machine has it.

Decides: the space on disks.
Applied by: roles/preflight.
Held by: tests/unit/planner/test_plan.py, tests/component/planner/test_plan_bytes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.contract.documents.plan.service import WebUiPlan
    from kimi_prov.contract.documents.plan.weights import DiskPlan, PreparedWeightsPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import ConvertedExperts, DraftPlan, EngineChoice, Weights
    from kimi_prov.planner.findings import Findings

_RESERVE_BYTES = 1_000_000_000
_NO_ROOM_FOR_BOTH = (
    ": `kimi-prov clean INVENTORY` frees what no kept version needs, and kimi_upgrade_in_place: "
    "true removes what serves before the new version comes"
)


@dataclass(frozen=True)
class OtherFiles:
    """Files beside the weights and the engine; all but `converted` are sections of the plan."""

    draft: DraftPlan | None = None
    converted: ConvertedExperts | None = None
    page: WebUiPlan | None = None
    prepared: PreparedWeightsPlan | None = None


def make_document(
    host: Host,
    weights: Weights,
    choice: EngineChoice,
    findings: Findings,
    beside: OtherFiles,
    *,
    in_place: bool,
) -> tuple[DiskPlan, list[str]]:
    """Make the plan's `disk`, and check the free space for the files that are still missing.

    Weights and engines may be on different file systems. `in_place`: where the space is too small,
    weights that the plan does not use are removed first; the second value names their directories.
    """
    draft, converted, page = beside.draft, beside.converted, beside.page
    engine_bytes = choice.engine.install_peak_bytes
    if choice.interpreter is not None:
        engine_bytes += choice.interpreter.bytes + choice.interpreter.installed_bytes
    page_bytes = page["install_bytes"] if page else 0
    weights_bytes = weights.size_bytes + (draft["bytes"] if draft else 0)
    parts = {weights.directory: weights.size_bytes}
    shares = ""
    if converted is not None:
        weights_bytes += converted.room_bytes
        parts[converted.directory] = converted.size_bytes
        shares = (
            f"; in all {format_bytes(weights.size_bytes)} of weights, "
            f"{format_bytes(converted.room_bytes)} for the converted experts, "
            f"{format_bytes(engine_bytes)} for the engine, and a reserve"
        )
    missing = {
        paths.MODELS: weights_bytes
        - sum(min(host.models.get(where, 0), size) for where, size in parts.items()),
        paths.ENGINES: 0 if choice.env_name in host.engine_envs else engine_bytes,
    }
    if page and page["env_name"] not in host.web_envs:
        missing[paths.WEB_ENVS] = page_bytes
    prepared_bytes = beside.prepared["bytes"] if beside.prepared else 0
    if beside.prepared and beside.prepared["dir"]:
        folders = host.facts["kimi"].get("prepared") or []
        there = sum(f["disk_bytes"] for f in folders if f["dir"] == beside.prepared["dir"])
        missing[paths.PREPARED] = max(0, prepared_bytes - there)
    used = {*parts, *([draft["dir"]] if draft else [])}
    others = {where: size for where, size in host.models.items() if where not in used}
    frees = _check_space(host, missing, shares, findings, others, in_place=in_place)
    room: DiskPlan = {
        "path": paths.ROOT,
        "required_bytes": weights_bytes
        + engine_bytes
        + page_bytes
        + prepared_bytes
        + _RESERVE_BYTES,
        "mounts_for": list_mounts(host, prepared=choice.prepared.enabled),
    }
    return room, frees


def check_web_ui_space(
    host: Host, page: WebUiPlan, build: Interpreter | None, findings: Findings
) -> None:
    """Check the space for a web UI without an engine, and for its bundled interpreter."""
    need = page["install_bytes"] + (build.bytes + build.installed_bytes if build else 0)
    there = page["env_name"] in host.web_envs
    _check_space(host, {paths.WEB_ENVS: 0 if there else need}, "", findings, {}, in_place=False)


def _check_space(
    host: Host,
    missing: Mapping[str, int],
    shares: str,
    findings: Findings,
    others: Mapping[str, int],
    *,
    in_place: bool,
) -> list[str]:
    """Check each file system of a directory in `missing`, which gives the bytes still to come.

    `others`: weights that the plan does not use. Returns those that have to be removed first.
    """
    held = {path: row for row in host.filesystems for path in row.holds}
    rows = {path: held.get(path) or held.get(paths.ROOT) for path in missing}
    frees: list[str] = []
    for row in dict.fromkeys(row for row in rows.values() if row is not None):
        if row.free_bytes is None:
            continue
        here = [path for path in missing if rows[path] is row]
        need = sum(missing[path] for path in here) + _RESERVE_BYTES
        on_one_filesystem = len(here) == len(missing)
        where = paths.ROOT if on_one_filesystem else here[0]
        short = row.free_bytes < need
        gained = sum(others.values()) if paths.MODELS in here else 0
        room = f"mount a larger file system at {where}, or make room on {row.mount}"
        if short and row.free_bytes + gained >= need:
            if in_place:
                frees = sorted(others)
                short = False
            else:
                room += _NO_ROOM_FOR_BOTH
        findings.add(
            "disk.room",
            severity="blocker" if short else "pass",
            observed=f"{format_bytes(row.free_bytes)} free on {row.mount}",
            required=f"{format_bytes(need)} more below {where}"
            f"{shares if on_one_filesystem else ''}",
            fix=room if short else None,
        )
    if frees:
        findings.add(
            "upgrade.in_place",
            observed=f"no room beside {', '.join(frees)}",
            required="these are removed first, as kimi_upgrade_in_place allows: nothing serves "
            "until the new version does, and there is no way back",
            fix=f"make room for both below {paths.MODELS}, and take kimi_upgrade_in_place away",
        )
    return frees


def list_mounts(host: Host, *, prepared: bool) -> list[str]:
    """Return the paths whose file systems a unit has to wait for, and the targets of their links.

    systemd also considers the parents of a path, but follows no link.
    """
    places = (paths.ENGINES, paths.MODELS, *([paths.PREPARED] if prepared else []))
    links = {path: real for row in host.filesystems for path, real in row.linked}
    return [*places, *(links[path] for path in places if path in links)]
