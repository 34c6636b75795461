"""The disk room that weights and engine need, and whether the machine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.sizes import human

if TYPE_CHECKING:
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Choice, Converted, Weights
    from kimi_prov.planner.findings import Findings

_RESERVE_BYTES = 1_000_000_000


def document(
    host: Host,
    weights: Weights,
    choice: Choice,
    findings: Findings,
    *,
    draft_bytes: int = 0,
    converted: Converted | None = None,
) -> dict[str, Any]:
    """Give the plan's `disk`, and judge the room that is left, counting what is there already."""
    engine_bytes = choice.engine.install_peak_bytes
    required = weights.size_bytes + draft_bytes + engine_bytes + _RESERVE_BYTES
    parts = {weights.directory: weights.size_bytes}
    shares = ""
    if converted is not None:
        required += converted.room_bytes
        parts[converted.directory] = converted.size_bytes
        shares = (
            f"; in all {human(weights.size_bytes)} of weights, {human(converted.room_bytes)} for "
            f"the converted experts, {human(engine_bytes)} for the engine, and a reserve"
        )
    row = next((f for f in host.facts["filesystems"] if paths.ROOT in f.get("holds", [])), None)
    free = row.get("free_bytes") if row else None
    if row is None or free is None:
        return {"path": paths.ROOT, "required_bytes": required}
    kimi = host.facts["kimi"]
    there = {m["dir"]: m["disk_bytes"] for m in kimi.get("models") or []}
    missing = required - sum(min(there.get(where, 0), size) for where, size in parts.items())
    if choice.env_name in (kimi.get("engine_envs") or []):
        missing -= engine_bytes
    shown = f"{human(free)} free on {row['mount']}"
    if free < missing:
        findings.add(
            "disk.room",
            severity="blocker",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
            fix=f"mount a larger file system at {paths.ROOT}, or make room on {row['mount']}",
        )
    else:
        findings.add(
            "disk.room",
            severity="pass",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
        )
    return {"path": paths.ROOT, "required_bytes": required}
