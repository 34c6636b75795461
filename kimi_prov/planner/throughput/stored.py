"""The stored coefficients of the fit: reading them takes milliseconds, fitting takes seconds."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from kimi_prov import documents
from kimi_prov.catalog.loader import OVERLAY
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput.calibrate import FAMILIES, Kinds, Model
from kimi_prov.planner.throughput.fit import Fit
from kimi_prov.planner.throughput.subjects import CATALOGUE

ROWS = CATALOGUE / "speeds.yaml"
COEFFICIENTS = CATALOGUE / "speed_coefficients.json"
_DIGITS = 6
_MAX_BYTES = 1 << 20
_MAX_AUTHORS, _MAX_SPREAD = 10_000, 5.0


def format_models(models: dict[str, Model]) -> str:
    """Format the models as JSON, rounded so that every platform gives the same text."""
    document: dict[str, object] = {"schema": "kimi-prov/catalog/speed-coefficients/v1"}
    for name, model in models.items():
        document[name] = {
            "values": {key: _round(value) for key, value in model.fit.values.items()},
            "covariance": [[_round(v) for v in row] for row in model.fit.covariance],
            "widths": {key: _round(value) for key, value in model.widths.items()},
            "kinds": {
                "spreads": {key: _round(v) for key, v in model.kinds.spreads.items()},
                "authors": dict(sorted(model.kinds.authors.items())),
                "widths": {key: _round(v) for key, v in model.kinds.widths.items()},
            },
        }
    return json.dumps(document, indent=1) + "\n"


def list_row_files() -> list[Path]:
    """List the files of measured rows: ours, and a site's own where its catalogue has one."""
    own = _find_site_file(ROWS.name)
    return [ROWS, own] if own is not None and own.exists() else [ROWS]


def write_models(models: dict[str, Model]) -> Path:
    """Store the coefficients in the catalogue: a site's own where one is named. Returns the file.

    Predictions with that catalogue then use them.
    """
    file = _find_site_file(COEFFICIENTS.name) or COEFFICIENTS
    try:
        file.write_text(format_models(models), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{file}: cannot be written: {error.strerror}",
            fix="name a folder that you may write to with KIMI_PROV_CATALOG",
        ) from None
    return file


def load_models() -> dict[str, Model]:
    """Read the stored coefficients: a site's own where its catalogue has them."""
    own = _find_site_file(COEFFICIENTS.name)
    if own is None or not own.exists():
        return _load_own()
    return _load_site(own)


def _find_site_file(name: str) -> Path | None:
    folder = os.environ.get(OVERLAY)
    return Path(folder) / name if folder else None


@cache
def _load_own() -> dict[str, Model]:
    return _parse_models(json.loads(COEFFICIENTS.read_text(encoding="utf-8")))


@cache
def _load_site(file: Path) -> dict[str, Model]:
    """Read a site's coefficients. Raises UserError where this version cannot use them."""
    fix = "fit again:  KIMI_PROV_CATALOG=DIR python -m kimi_prov.planner.throughput.score --write"
    what = "fitted coefficients"
    document = documents.read_document(file, what=what, limit=_MAX_BYTES, fix=fix).json(fix)
    try:
        models = _parse_models(document)
        known = {name: set(model.fit.values) for name, model in models.items()}
        sizes = [
            (len(m.fit.values), [len(row) for row in m.fit.covariance]) for m in models.values()
        ]
        numbers = [
            *(v for m in models.values() for v in (*m.fit.values.values(), *m.widths.values()))
        ]
        sound = all(isinstance(value, float) and value > 0 for value in numbers)
        sound = sound and all(rows == [size] * size for size, rows in sizes)
        sound = sound and all("all" in model.widths for model in models.values())
        sound = sound and all(_check_kinds(model.kinds) for model in models.values())
    except (AttributeError, KeyError, TypeError):
        known, sound = {}, False
    if not sound or known != {name: set(priors) for name, priors in FAMILIES.items()}:
        raise UserError(f"{file}: these are not the coefficients of this version", fix=fix)
    return models


def _parse_models(document: dict[str, Any]) -> dict[str, Model]:
    return {
        name: Model(
            Fit(tuple(part["values"]), part["values"], part["covariance"]),
            part["widths"],
            Kinds(part["kinds"]["spreads"], part["kinds"]["authors"], part["kinds"]["widths"]),
        )
        for name, part in document.items()
        if name != "schema"
    }


def _check_kinds(kinds: Kinds) -> bool:
    """Whether counts, spreads and widths are numbers in their bounds."""
    counts = kinds.authors.values()
    known = all(isinstance(count, int) and 0 < count < _MAX_AUTHORS for count in counts)
    widths = kinds.widths.values()
    known = known and all(isinstance(width, float) and 0 < width < _MAX_SPREAD for width in widths)
    return known and all(
        isinstance(spread, float) and 0 <= spread < _MAX_SPREAD for spread in kinds.spreads.values()
    )


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
