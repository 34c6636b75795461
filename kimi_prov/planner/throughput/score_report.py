"""The score as a text for people and as a document for scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.throughput import classes, rival
from kimi_prov.planner.throughput.classes import Class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.calibrate import Prediction
    from kimi_prov.planner.throughput.classes import Score
    from kimi_prov.planner.throughput.rival import ComparedRow, Comparison
    from kimi_prov.planner.throughput.rows import SkippedRow

SCHEMA = "kimi-prov/score/v1"
_TITLE_WIDTH = 36


@dataclass(frozen=True)
class Report:
    """What is reported: predictions of rows that no fit has seen, and a comparison if requested."""

    heading: str
    predictions: Sequence[Prediction]
    set_aside: Sequence[SkippedRow] = ()
    comparison: Comparison | None = None
    scores: Sequence[Score] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", classes.score_classes(self.predictions))


def format_report(report: Report, *, each: bool) -> str:
    """Format the classes, the aims, the rival, and with `each` every row."""
    lines = [
        f"Speed estimates: {report.heading}",
        "",
        _format_head(),
        *map(_format_score, report.scores),
    ]
    lines += ["", *_describe_aims(report.scores), "", *_format_rival(report.comparison)]
    if each:
        compared = report.comparison.compared if report.comparison else []
        theirs = {id(row.ours): row.expected for row in compared}
        lines += ["", *(_format_row(p, theirs.get(id(p))) for p in report.predictions)]
    lines += ["", *(f"set aside: {row.id}: {row.reason}" for row in report.set_aside)]
    return "\n".join(lines).rstrip() + "\n"


def make_document(report: Report) -> dict[str, Any]:
    """Make the report's JSON document, with every row; shares are of 1, speeds tokens a second."""
    return {
        "schema": SCHEMA,
        "heading": report.heading,
        "aims": {
            "median_error": classes.AIMS,
            "median_error_prefill": classes.PREFILL_AIM,
            "held": classes.MIN_COVERAGE,
            "high_over_low": classes.MAX_HIGH_OVER_LOW,
            "fewest_sources": classes.MIN_AUTHORS,
            "fewest_sources_for_width": classes.WIDTH_AUTHORS,
        },
        "classes": [
            {
                **_name_class(score.of),
                "rows": score.rows,
                "sources": score.authors,
                "figures": asdict(score.figures) if score.figures else None,
                "verdict": score.verdict,
                "missed": score.missed,
            }
            for score in report.scores
        ],
        "rows": [_make_entry(p) for p in report.predictions],
        "set_aside": [asdict(row) for row in report.set_aside],
        "rival": _make_rival_document(report.comparison) if report.comparison else None,
    }


def _format_head() -> str:
    return (
        f"{'class':{_TITLE_WIDTH}}{'rows':>5}{'authors':>9}{'median':>9}{'mean':>8}{'90th':>8}"
        f"{'held':>7}{'high/low':>10}"
    )


def _format_score(score: Score) -> str:
    start = _start_line(score.of, score.rows, score.authors)
    f = score.figures
    if f is None:
        return f"{start}  {_describe_unscored()}"
    return (
        f"{start}{f.median_error:9.1%}{f.mean_error:8.1%}{f.error_p90:8.0%}{f.held:7.0%}"
        f"{f.high_over_low:10.2f}"
    )


def _start_line(of: Class, rows: int, authors: int) -> str:
    title = f"  {of.name}" if of.part_of else of.title
    return f"{title:{_TITLE_WIDTH}}{rows:5}{authors:9}"


def _describe_unscored() -> str:
    return f"unscored: under {classes.MIN_AUTHORS} authors"


def _describe_aims(scores: Sequence[Score]) -> list[str]:
    medians = ", ".join(f"{name} {aim:.0%}" for name, aim in classes.AIMS.items() if aim)
    judged = [score for score in scores if score.verdict]
    met = sum(score.verdict == "met" for score in judged)
    unscored = sum(score.verdict == "unscored" for score in judged)
    rowless = [
        name
        for name, aim in classes.AIMS.items()
        if aim and not any(score.of == Class(name, None, "decode") for score in scores)
    ]
    held, wide = f"{classes.MIN_COVERAGE:.0%}", f"{classes.MAX_HIGH_OVER_LOW:g}"
    scored = len(judged) - unscored
    return [
        f"Aims: median error at most: {medians}; of prefill {classes.PREFILL_AIM:.0%};",
        f"ranges hold {held} of the rows and are at most {wide} times wide on average (judged from",
        f"{classes.WIDTH_AUTHORS} authors).",
        f"Met by {met} of {scored} scored classes; {unscored} are unscored.",
        *(_describe_verdict(score) for score in judged),
        *(f"{'no rows':10}{name}, decode" for name in rowless),
    ]


def _describe_verdict(score: Score) -> str:
    reason = f": {'; '.join(score.missed)}" if score.missed else ""
    return f"{score.verdict:10}{score.of.title}{reason}"


def _format_rival(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return [f"To see aiconfigurator's figures for the same rows: {rival.SETUP_HELP}."]
    compared, silent = comparison.compared, comparison.unanswered
    rows = f"{len(compared)} of {len(compared) + silent.total()} rows on GPUs"
    lines = [
        f"{comparison.name} answered {rows}{_format_modes(compared)}.",
        *(f"not answered, {count} rows: {reason}" for reason, count in silent.most_common()),
    ]
    if compared:
        heads = {"our median": 13, "our mean": 11, "its median": 13, "its mean": 11}
        titles = "".join(f"{title:>{width}}" for title, width in heads.items())
        lines += [
            "Errors of both on the rows that it answered. Ours were predicted without the row's",
            "author; what the rival was made from is not known here.",
            f"{'class':{_TITLE_WIDTH}}{'rows':>5}{'authors':>9}{titles}",
            *(_format_pair(of, chosen) for of, chosen in _split_pairs(compared)),
        ]
    return lines


def _format_modes(compared: Sequence[ComparedRow]) -> str:
    modes = sorted({row.mode for row in compared})
    counted = (f"{sum(row.mode == mode for row in compared)} in mode {mode}" for mode in modes)
    return f" ({', '.join(counted)})" if modes else ""


def _format_pair(of: Class, chosen: Sequence[ComparedRow]) -> str:
    figures = _compare_pair(chosen)
    start = _start_line(of, len(chosen), classes.count_authors(row.ours.case for row in chosen))
    if figures is None:
        return f"{start}  {_describe_unscored()}"
    widths = {"our_median": 13, "our_mean": 11, "its_median": 13, "its_mean": 11}
    return start + "".join(f"{figures[key]:{width}.1%}" for key, width in widths.items())


def _split_pairs(compared: Sequence[ComparedRow]) -> list[tuple[Class, list[ComparedRow]]]:
    return classes.split_into_classes(compared, lambda row: row.ours.case)


def _compare_pair(chosen: Sequence[ComparedRow]) -> dict[str, float] | None:
    """Compute the errors of both over the same rows; None for a class with too few authors."""
    if classes.count_authors(row.ours.case for row in chosen) < classes.MIN_AUTHORS:
        return None
    ours, its = [row.ours.error for row in chosen], [row.error for row in chosen]
    return {
        "our_median": median(ours),
        "our_mean": fmean(ours),
        "its_median": median(its),
        "its_mean": fmean(its),
    }


def _make_rival_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "name": comparison.name,
        "answered": len(comparison.compared),
        "unanswered": dict(comparison.unanswered),
        "classes": [
            {**_name_class(of), "rows": len(chosen), "figures": _compare_pair(chosen)}
            for of, chosen in _split_pairs(comparison.compared)
        ],
        "rows": [
            _make_entry(row.ours) | {"its": row.expected, "its_mode": row.mode}
            for row in comparison.compared
        ],
    }


def _name_class(of: Class) -> dict[str, str | None]:
    part = of.name if of.part_of else None
    return {"class": of.part_of or of.name, "part": part, "quantity": of.quantity}


def _make_entry(p: Prediction) -> dict[str, Any]:
    name, part = classes.classify_case(p.case)
    return {
        "id": p.case.id,
        "source": p.case.author,
        "class": name,
        "part": part,
        "quantity": p.case.quantity,
        "measured": p.case.value,
        "expected": p.expected,
        "low": p.low,
        "high": p.high,
        "held": p.is_covered,
    }


def _format_row(p: Prediction, its: float | None) -> str:
    mark = " " if p.is_covered else "!"
    theirs = "" if its is None else f"; rival {its:.1f}"
    return (
        f"{mark} {p.case.id:6}{p.case.kind:12}{p.case.quantity:8}{p.case.value:9.1f} measured, "
        f"{p.expected:.1f} expected, {p.low:.1f} to {p.high:.1f}{theirs}  {p.case.author[:50]}"
    )
