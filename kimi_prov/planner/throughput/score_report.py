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
    from kimi_prov.planner.throughput.rival import Compared, Comparison
    from kimi_prov.planner.throughput.rows import SetAside

SCHEMA = "kimi-prov/score/v1"
_TITLE = 36


@dataclass(frozen=True)
class Report:
    """What is told: predictions of rows that no fit has seen, and the rival's where asked."""

    heading: str
    predictions: Sequence[Prediction]
    set_aside: Sequence[SetAside] = ()
    comparison: Comparison | None = None
    scores: Sequence[Score] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", classes.scores(self.predictions))


def text(report: Report, *, each: bool) -> str:
    """Lay out the classes, the aims, the rival, and with `each` every row."""
    lines = [f"Speed estimates: {report.heading}", "", _head(), *map(_line, report.scores)]
    lines += ["", *_aims(report.scores), "", *_rival(report.comparison)]
    if each:
        told = report.comparison.compared if report.comparison else []
        theirs = {id(row.ours): row.expected for row in told}
        lines += ["", *(_row(p, theirs.get(id(p))) for p in report.predictions)]
    lines += ["", *(f"set aside: {row.id}: {row.reason}" for row in report.set_aside)]
    return "\n".join(lines).rstrip() + "\n"


def document(report: Report) -> dict[str, Any]:
    """Tell the same, every row included; shares are of one, speeds are tokens a second."""
    return {
        "schema": SCHEMA,
        "heading": report.heading,
        "aims": {
            "median_error": classes.AIMS,
            "held": classes.HELD,
            "high_over_low": classes.HIGH_OVER_LOW,
            "fewest_sources": classes.FEWEST_SOURCES,
        },
        "classes": [
            {
                **_named(score.of),
                "rows": score.rows,
                "sources": score.sources,
                "figures": asdict(score.figures) if score.figures else None,
                "verdict": score.verdict,
                "missed": score.missed,
            }
            for score in report.scores
        ],
        "rows": [_entry(p) for p in report.predictions],
        "set_aside": [asdict(row) for row in report.set_aside],
        "rival": _rival_document(report.comparison) if report.comparison else None,
    }


def _head() -> str:
    return (
        f"{'class':{_TITLE}}{'rows':>5}{'sources':>9}{'median':>9}{'mean':>8}{'90th':>8}"
        f"{'held':>7}{'high/low':>10}"
    )


def _line(score: Score) -> str:
    start = _start(score.of, score.rows, score.sources)
    f = score.figures
    if f is None:
        return f"{start}  {_unscored()}"
    return (
        f"{start}{f.median_error:9.1%}{f.mean_error:8.1%}{f.error_p90:8.0%}{f.held:7.0%}"
        f"{f.high_over_low:10.2f}"
    )


def _start(of: Class, rows: int, sources: int) -> str:
    title = f"  {of.name}" if of.part_of else of.title
    return f"{title:{_TITLE}}{rows:5}{sources:9}"


def _unscored() -> str:
    return f"unscored: under {classes.FEWEST_SOURCES} sources"


def _aims(scores: Sequence[Score]) -> list[str]:
    medians = ", ".join(f"{name} {aim:.0%}" for name, aim in classes.AIMS.items() if aim)
    judged = [score for score in scores if score.verdict]
    met = sum(score.verdict == "met" for score in judged)
    unscored = sum(score.verdict == "unscored" for score in judged)
    rowless = [
        name
        for name, aim in classes.AIMS.items()
        if aim and not any(score.of == Class(name, None, "decode") for score in scores)
    ]
    held, wide = f"{classes.HELD:.0%}", f"{classes.HIGH_OVER_LOW:g}"
    scored = len(judged) - unscored
    return [
        f"Aims: median error at most: {medians};",
        f"ranges hold {held} of the rows and are at most {wide} times wide on average.",
        f"Met by {met} of {scored} scored classes; {unscored} are unscored.",
        *(_verdict(score) for score in judged),
        *(f"{'no rows':10}{name}, decode" for name in rowless),
    ]


def _verdict(score: Score) -> str:
    why = f": {'; '.join(score.missed)}" if score.missed else ""
    return f"{score.verdict:10}{score.of.title}{why}"


def _rival(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return [f"To see aiconfigurator's figures for the same rows: {rival.HOW}."]
    found, silent = comparison.compared, comparison.unanswered
    rows = f"{len(found)} of {len(found) + silent.total()} rows on GPUs"
    lines = [
        f"{comparison.name} answered {rows}{_modes(found)}.",
        *(f"not answered, {count} rows: {why}" for why, count in silent.most_common()),
    ]
    if found:
        heads = {"our median": 13, "our mean": 11, "its median": 13, "its mean": 11}
        titles = "".join(f"{title:>{width}}" for title, width in heads.items())
        lines += [
            "Errors of both on the rows that it answered. Ours were predicted without the row's",
            "source; what the rival was made from is not known here.",
            f"{'class':{_TITLE}}{'rows':>5}{'sources':>9}{titles}",
            *(_pair_line(of, chosen) for of, chosen in _pairs(found)),
        ]
    return lines


def _modes(found: Sequence[Compared]) -> str:
    modes = sorted({row.mode for row in found})
    counted = (f"{sum(row.mode == mode for row in found)} in mode {mode}" for mode in modes)
    return f" ({', '.join(counted)})" if modes else ""


def _pair_line(of: Class, chosen: Sequence[Compared]) -> str:
    figures = _pair(chosen)
    start = _start(of, len(chosen), classes.sources(row.ours.case for row in chosen))
    if figures is None:
        return f"{start}  {_unscored()}"
    widths = {"our_median": 13, "our_mean": 11, "its_median": 13, "its_mean": 11}
    return start + "".join(f"{figures[key]:{width}.1%}" for key, width in widths.items())


def _pairs(found: Sequence[Compared]) -> list[tuple[Class, list[Compared]]]:
    return classes.split(found, lambda row: row.ours.case)


def _pair(chosen: Sequence[Compared]) -> dict[str, float] | None:
    """Errors of both over the same rows; None for a class under the fewest sources."""
    if classes.sources(row.ours.case for row in chosen) < classes.FEWEST_SOURCES:
        return None
    ours, its = [row.ours.error for row in chosen], [row.error for row in chosen]
    return {
        "our_median": median(ours),
        "our_mean": fmean(ours),
        "its_median": median(its),
        "its_mean": fmean(its),
    }


def _rival_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "name": comparison.name,
        "answered": len(comparison.compared),
        "unanswered": dict(comparison.unanswered),
        "classes": [
            {**_named(of), "rows": len(chosen), "figures": _pair(chosen)}
            for of, chosen in _pairs(comparison.compared)
        ],
        "rows": [
            _entry(row.ours) | {"its": row.expected, "its_mode": row.mode}
            for row in comparison.compared
        ],
    }


def _named(of: Class) -> dict[str, str | None]:
    part = of.name if of.part_of else None
    return {"class": of.part_of or of.name, "part": part, "quantity": of.quantity}


def _entry(p: Prediction) -> dict[str, Any]:
    name, part = classes.place(p.case)
    return {
        "id": p.case.id,
        "source": p.case.source,
        "class": name,
        "part": part,
        "quantity": p.case.quantity,
        "measured": p.case.value,
        "expected": p.expected,
        "low": p.low,
        "high": p.high,
        "held": p.held,
    }


def _row(p: Prediction, its: float | None) -> str:
    mark = " " if p.held else "!"
    theirs = "" if its is None else f"; rival {its:.1f}"
    return (
        f"{mark} {p.case.id:6}{p.case.kind:12}{p.case.quantity:8}{p.case.value:9.1f} measured, "
        f"{p.expected:.1f} expected, {p.low:.1f} to {p.high:.1f}{theirs}  {p.case.source[:50]}"
    )
