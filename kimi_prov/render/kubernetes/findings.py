"""What of a plan's findings holds in a pod, and what the cluster must have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import Findings
from kimi_prov.render import planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings


def of_pod(settings: Settings) -> Settings:
    """Return the settings as they count in a pod."""
    return replace(settings, **planned.WITHOUT_EFFECT, ram_disk="never", instances=1)


def of_plan(plan: Mapping[str, Any]) -> list[Finding]:
    """Give the findings of a plan that is served by pods."""
    findings = Findings()
    findings.extend(planned.held(plan))
    return findings.rows()
