"""`kimi-prov render kubernetes`: objects for a cluster of Kubernetes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.render.folder import Kind
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.planner.findings import sort_by_severity
from kimi_prov.render.kubernetes import findings, folder, quota

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render import frame


def kind(quotas: Sequence[Path]) -> Kind:
    """Return what a folder of objects is rendered by; `quotas`: files of the namespace's."""
    found = partial(_findings, quotas)
    return Kind(folder.KIND, _require, findings.of_pod, found, _rendered, _told)


def _require(settings: Settings) -> None:
    if settings.kubernetes_image is None:
        raise UserError(
            "kimi_kubernetes_image is not set: it is the image with the engine",
            fix="give  --image REGISTRY/NAME:TAG , or kimi_kubernetes_image in --vars FILE",
        )


def _findings(
    quotas: Sequence[Path],
    name: str,
    plan: Mapping[str, Any],
    settings: Settings,
    facts: Mapping[str, Any],
    catalogue: Catalogue,
) -> Sequence[Finding]:
    rows = quota.read(quotas, settings.kubernetes_namespace)
    found = findings.of_plan(plan, settings, facts, catalogue)
    if any(row["severity"] == "blocker" for row in found):
        return found
    demand = quota.demand_of(quota.load(folder.objects(name, plan, settings, facts)))
    held = findings.of_quota(rows, demand, settings.kubernetes_namespace)
    return sort_by_severity([*found, *held])


def _rendered(
    name: str,
    plan: Mapping[str, Any],
    found: Sequence[Finding],
    settings: Settings,
    facts: Mapping[str, Any],
    _catalogue: Catalogue,
) -> frame.Rendered:
    return folder.rendered(name, plan, found, settings, facts)


def _told(path: Path, notes: int) -> str:
    found = [f"{notes} notes on what the cluster must have are in README.md there"] if notes else []
    return "\n".join([*found, f"next:  kimi-prov apply {clean_text.quote_word(path)}"])
