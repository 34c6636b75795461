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
    """Give the plan's `disk`, and check the room that is left, counting what is there already."""
    engine_bytes = choice.engine.install_peak_bytes
    if choice.interpreter is not None:
        engine_bytes += choice.interpreter.bytes + choice.interpreter.installed_bytes
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
    row = next((row for row in host.filesystems if paths.ROOT in row.holds), None)
    if row is None or row.free_bytes is None:
        return {"path": paths.ROOT, "required_bytes": required}
    missing = required - sum(min(host.models.get(where, 0), size) for where, size in parts.items())
    if choice.env_name in host.engine_envs:
        missing -= engine_bytes
    shown = f"{human(row.free_bytes)} free on {row.mount}"
    if row.free_bytes < missing:
        findings.add(
            "disk.room",
            severity="blocker",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
            fix=f"mount a larger file system at {paths.ROOT}, or make room on {row.mount}",
        )
    else:
        findings.add(
            "disk.room",
            severity="pass",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
        )
    return {"path": paths.ROOT, "required_bytes": required}
