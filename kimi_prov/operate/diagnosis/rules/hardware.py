"""What the status of a machine reports about failing hardware, as observations of `diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import gpu_faults
from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.operate.diagnosis.evidence import Evidence

_IDS = {fault.id for fault in gpu_faults.FAULTS}


def list_failing(evidence: Evidence) -> Iterator[tuple[str, Observation]]:
    """Give the findings that the status of this machine has; an unknown one is left out."""
    for row in evidence.failing:
        if row.get("id") in _IDS:
            yield (
                str(row["id"]),
                Observation(
                    observed=str(row.get("observed")),
                    required=str(row.get("required")),
                    fix=str(row.get("fix")),
                ),
            )
