"""`kimi-prov render kubernetes`: objects for a cluster of Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.render import Kind
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.render.kubernetes import findings, folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render import frame


def kind() -> Kind:
    """Return what a folder of objects is rendered by."""
    return Kind(folder.KIND, _require, findings.of_pod, _findings, _rendered, _told)


def _require(settings: Settings) -> None:
    if settings.kubernetes_image is None:
        raise UserError(
            "kimi_kubernetes_image is not set: it is the image with the engine",
            fix="give  --image REGISTRY/NAME:TAG , or kimi_kubernetes_image in --vars FILE",
        )


def _findings(
    plan: Mapping[str, Any], _settings: Settings, _facts: Mapping[str, Any]
) -> Sequence[Finding]:
    return findings.of_plan(plan)


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
    return "\n".join([*found, f"next:  kimi-prov apply {clean_text.word(path)}"])
