"""Scores the estimator: `python -m kimi_prov.planner.throughput.score [ROWS.yaml]`.

Without a file, each source of catalog/speeds.yaml is predicted from all the others. With one, its
rows are predicted from the catalogue's, less any source of the catalogue that holds the same row.
`--write` fits again and stores the coefficients that the planner uses. Where KIMI_PROV_CATALOG
names a site's catalogue, the rows of its speeds.yaml count as ours do, and its coefficients are
written there, for predictions with that catalogue.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import calibrate, rows, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.calibrate import Prediction
    from kimi_prov.planner.throughput.cases import Case

_CLASSES = {
    "CPU": "cpu",
    "hybrid": "hybrid",
    "GPU single stream": "gpu-single",
    "GPU batched": "gpu-batched",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the score. Returns 0, or 2 for a file that is not of rows."""
    parser = argparse.ArgumentParser(prog="score", description=__doc__)
    parser.add_argument("rows", nargs="?", type=Path, help="another file of measured rows")
    parser.add_argument("--write", action="store_true", help="store the fitted coefficients")
    parser.add_argument("--rows", dest="each", action="store_true", help="print each row as well")
    options = parser.parse_args(argv)
    try:
        known, aside = rows.read_all(stored.row_files())
        if options.write:
            stored.write(calibrate.learn(known))
        if options.rows is None:
            predictions = calibrate.leave_one_source_out(known)
            heading = "each source predicted from all the others"
        else:
            fresh, aside = rows.read(options.rows)
            predictions = _predict(fresh, known)
            heading = f"{options.rows} predicted from the catalogue's rows"
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    lines = report(predictions, heading, each=options.each)
    lines += ["", *(f"set aside: {row.id}: {row.reason}" for row in aside)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _predict(fresh: Sequence[Case], known: Sequence[Case]) -> list[Prediction]:
    """Predict rows; where a row is also in the catalogue, from the catalogue without its source."""
    seen = {(case.id, case.source) for case in known}
    again = [case for case in fresh if (case.id, case.source) in seen]
    new = [case for case in fresh if (case.id, case.source) not in seen]
    models = stored.load()
    found = [calibrate.model_of(case, models).predict(case) for case in new]
    for source in sorted({case.source for case in again}):
        found += calibrate.without(source, known, again)
    return found


def report(predictions: Sequence[Prediction], heading: str, *, each: bool) -> list[str]:
    """Lay out the table: errors of the expected value, and what the ranges held."""
    lines = [f"Speed estimates: {heading}", ""]
    lines.append(
        f"{'class':28}{'rows':>5}{'sources':>9}{'median':>9}{'90th':>8}{'held':>7}{'high/low':>10}"
    )
    for quantity in ("decode", "prefill"):
        of_kind = [p for p in predictions if p.case.quantity == quantity]
        for title, kind in _CLASSES.items():
            chosen = [p for p in of_kind if p.case.kind == kind]
            if chosen:
                lines.append(_line(f"{title}, {quantity}", chosen))
        if of_kind:
            lines.append(_line(f"all, {quantity}", of_kind))
    if predictions:
        lines.append(_line("all", predictions))
    if each:
        lines.append("")
        lines += [_row(p) for p in predictions]
    return lines


def _line(title: str, chosen: Sequence[Prediction]) -> str:
    errors = sorted(p.error for p in chosen)
    held = sum(p.held for p in chosen) / len(chosen)
    width = sum(p.high / p.low for p in chosen) / len(chosen)
    sources = len({p.case.source for p in chosen})
    return (
        f"{title:28}{len(chosen):5}{sources:9}{_at(errors, 0.5):9.1%}{_at(errors, 0.9):8.0%}"
        f"{held:7.0%}{width:10.2f}"
    )


def _row(p: Prediction) -> str:
    mark = " " if p.held else "!"
    return (
        f"{mark} {p.case.id:6}{p.case.kind:12}{p.case.quantity:8}{p.case.value:9.1f} measured, "
        f"{p.expected:.1f} expected, {p.low:.1f} to {p.high:.1f}  {p.case.source[:50]}"
    )


def _at(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, between neighbours."""
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


if __name__ == "__main__":
    sys.exit(main())
