"""Choose the number format of the weights, and hold the named repository against it.

Decides: the weights' format.
Held by: tests/unit/planner/selection/test_weights_format.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings


def choose_format(settings: Settings, model: Model) -> str:
    """Return the format that is set, else that of the repository that is named, else the native."""
    if not settings.auto("weights_format"):
        return str(settings.weights_format)
    return _find_named_format(settings, model) or model.native_format


def check_format(settings: Settings, weights_format: str, model: Model, findings: Findings) -> None:
    """Report a repository of another format, and a format of which no repository is known."""
    named = _find_named_format(settings, model)
    if named not in (None, weights_format):
        findings.add(
            "weights.format_contradicted",
            names={"format": weights_format},
            observed=f"kimi_weights_format: {weights_format}, and the repository that is named "
            f"holds {named}",
            required="one format",
            fix=f"remove kimi_weights_format, or set it to {named}",
            source=model.source,
        )
    elif weights_format not in model.formats and settings.weights_source is None:
        findings.add(
            "weights.format_unpublished",
            names={"model": model.name, "format": weights_format},
            observed=f"kimi_weights_format: {weights_format}; kimi_weights_source is not set",
            required=f"a repository: known are those in {', '.join(model.formats)}",
            fix="name the repository in kimi_weights_source (hf://OWNER/NAME@REVISION), or remove "
            "kimi_weights_format",
            source=model.source,
        )


def _find_named_format(settings: Settings, model: Model) -> str | None:
    """Return the format of the known repository that source or model name; None for others."""
    formats = {row.repo.lower(): row.format for row in model.published}
    if model.repo:
        formats[model.repo.lower()] = model.native_format
    source = settings.weights_source or ""
    if source.startswith("hf://"):
        return formats.get(source.removeprefix("hf://").partition("@")[0].lower())
    # Only a name of other than the native format says one.
    names = {repo.rsplit("/", 1)[-1]: kind for repo, kind in formats.items()}
    kind = names.get(str(settings.model).strip().lower().rsplit("/", 1)[-1])
    return kind if kind != model.native_format else None
