"""Scores the estimator: `python -m kimi_prov.planner.throughput.score [ROWS.yaml]`.

Without a file, each author of catalog/speeds.yaml is predicted from all the others. With one, its
rows are predicted from the catalogue's, less any author of the catalogue who has the same row.
Where aiconfigurator is installed, beside kimi-prov or for another interpreter (`--rival-python`),
its figures for the same rows stand beside ours. `--write` fits again and stores the coefficients
that the planner uses. Where KIMI_PROV_CATALOG names a site's catalogue, the rows of its speeds.yaml
count as ours do, and its coefficients are written there, for predictions with that catalogue.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.throughput import (
    calibrate,
    draft_rows,
    first_token_rows,
    loads,
    rival,
    rows,
    score_report,
    stored,
)
from kimi_prov.planner.throughput.score_report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.calibrate import Prediction
    from kimi_prov.planner.throughput.cases import Case
    from kimi_prov.planner.throughput.first_token_rows import FirstToken


def main(argv: Sequence[str] | None = None) -> int:
    """Print the score; missed aims do not change the exit code.

    Returns 0; 1 where a requested rival answers nothing; 2 for a file that has no rows, and for an
    interpreter that cannot be started or has no aiconfigurator.
    """
    options = _parse_options(argv)
    try:
        report = _make_report(options)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if options.format == "json":
        sys.stdout.write(json.dumps(score_report.make_document(report), indent=1) + "\n")
    else:
        sys.stdout.write(score_report.format_report(report, each=options.each))
    nothing = report.comparison is not None and not report.comparison.compared
    return ExitCode.FAILED if options.rival_python and nothing else ExitCode.OK


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="score", description=__doc__)
    parser.add_argument("rows", nargs="?", type=Path, help="another file of measured rows")
    parser.add_argument("--write", action="store_true", help="store the fitted coefficients")
    parser.add_argument("--rows", dest="each", action="store_true", help="print each row as well")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: all of it"
    )
    parser.add_argument(
        "--rival-python", type=Path, help="an interpreter that has aiconfigurator", metavar="PATH"
    )
    parser.add_argument(
        "--rival-seconds",
        type=float,
        default=rival.LIMIT_S,
        help="how long the rival may take (%(default)g)",
        metavar="N",
    )
    return parser.parse_args(argv)


def _make_report(options: argparse.Namespace) -> Report:
    known, aside = rows.read_files(stored.list_row_files())
    if options.write:
        stored.write_models(calibrate.fit_models(known))
    if options.rows is None:
        predictions = calibrate.predict_from_other_authors(known)
        times = rows.read_first_tokens(stored.list_row_files())
        predictions += first_token_rows.predict_from_other_authors(times, known)
        predictions += loads.predict_from_other_authors()
        predictions += draft_rows.predict_from_other_authors(known)
        heading = "each author predicted from all the others"
    else:
        fresh, aside = rows.read_file(options.rows)
        times = rows.read_first_tokens([options.rows])
        predictions = _predict_rows(fresh, known) + _predict_times(times, known)
        heading = f"{options.rows} predicted from the catalogue's rows"
    python = options.rival_python or _find_own_python()
    limit_s = options.rival_seconds
    comparison = rival.compare_with_rival(python, predictions, limit_s) if python else None
    return Report(heading, predictions, aside, comparison)


def _find_own_python() -> Path | None:
    """Return our own interpreter if it has aiconfigurator, else None."""
    return Path(sys.executable) if importlib.util.find_spec("aiconfigurator") else None


def _predict_rows(fresh: Sequence[Case], known: Sequence[Case]) -> list[Prediction]:
    """Predict rows from the catalogue; a row that it holds too, without that row's author."""
    seen = {(case.id, case.author) for case in known}
    again = [case for case in fresh if (case.id, case.author) in seen]
    new = [case for case in fresh if (case.id, case.author) not in seen]
    models = stored.load_models()
    predictions = [calibrate.choose_model(case, models).predict(case) for case in new]
    for author in sorted({case.author for case in again}):
        predictions += calibrate.predict_without_author(author, known, again)
    return predictions


def _predict_times(times: Sequence[FirstToken], known: Sequence[Case]) -> list[Prediction]:
    """Predict times to the first token, those of an author of the catalogue without his rows."""
    again = {case.author for case in known}
    models = stored.load_models()
    new = [time for time in times if time.case.author not in again]
    old = [time for time in times if time.case.author in again]
    predictions = [first_token_rows.predict_first_token(time, models) for time in new]
    return predictions + first_token_rows.predict_from_other_authors(old, known)


if __name__ == "__main__":
    sys.exit(main())
