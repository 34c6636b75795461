"""Makes a host's part of the tune document: what would be tried, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kimi_prov.acceptance import bench, suite
from kimi_prov.facts import outline
from kimi_prov.planner.tuning import candidates, inventory_lines, rating
from kimi_prov.planner.tuning.session import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.answers import ExpectedStart
    from kimi_prov.contract.documents.bench import BenchedMachine, Serving
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.tune import (
        TunedHost,
        TuneLeftOut,
        TuneOutcomeOfHost,
        TuneRate,
        TuneRow,
    )
    from kimi_prov.planner.tuning.candidates import Setting
    from kimi_prov.planner.tuning.rating import Measured
    from kimi_prov.planner.tuning.session import Row, Session
    from kimi_prov.planner.tuning.subject import Subject

_FIGURES = 4


def make_preview(
    subject: Subject,
    settings: Sequence[Setting],
    only: Sequence[str],
    expected: ExpectedStart,
    variables: Mapping[str, object],
    *,
    busy: bool = False,
) -> TunedHost:
    """Say what a tune of this host would try, in its order, and how long that takes.

    The candidates of later settings depend on the winners of earlier ones: these are those for what
    serves.
    """
    rows: list[TuneRow] = []
    for setting in settings:
        planned = candidates.plan_setting(setting, subject, {}, subject.served)
        rows += [
            {
                "setting": setting.name,
                "label": row.candidate.label,
                "estimate": candidates.estimate(row.plan, subject.purpose),
                "reason": row.obstacle,
            }
            for row in planned
        ]
        if not planned:
            rows.append(
                {
                    "setting": setting.name,
                    "label": setting.text,
                    "estimate": None,
                    "reason": "there is nothing to choose on this machine",
                }
            )
    tried = sum(row["reason"] is None for row in rows)
    return {
        **_describe_subject(subject, variables, busy=busy),
        "ok": True,
        "detail": f"{tried} candidates would be tried",
        "start_s": expected["seconds"],
        "basis": expected["basis"],
        "starts": tried + 2,
        "candidates": rows,
        "left_out": _list_left_out(subject, only),
    }


def make_document(
    subject: Subject,
    session: Session | None,
    only: Sequence[str],
    outcome: TuneOutcomeOfHost,
    variables: Mapping[str, object],
    *,
    busy: bool = False,
) -> TunedHost:
    """Report a tune that has ended: every candidate, the winner, and whether what serves is back.

    `session`: None where it ended before anything was measured.
    """
    first = session.first if session else None
    winner = session.winner if session else None
    return {
        **_describe_subject(subject, variables, busy=busy),
        "ok": outcome["serves"],
        "detail": _describe_end(session, outcome),
        "note": (session.note or None) if session else None,
        "served": _describe_row(first) if first else None,
        "again": _describe_row(session.again) if session and session.again else None,
        "noise": _round(_compute_noise(session)) if session else None,
        "candidates": _describe_rows(session),
        "winner": _describe_row(winner) if winner else None,
        "rounds": ROUNDS,
        "outcome": outcome,
        "left_out": _list_left_out(subject, only),
        "lines": None,
        "written": None,
    }


def _describe_subject(
    subject: Subject, variables: Mapping[str, object], *, busy: bool
) -> TunedHost:
    plan = subject.served
    engine = plan["engine"]
    return {
        "ok": True,
        "detail": "",
        "model": plan["model"]["name"],
        "engine": {
            "name": engine["name"],
            "variant": engine["variant"],
            "version": engine["version"],
        },
        "machine": _make_outline(subject.facts),
        "measured_at": subject.facts["collected_at"],
        "busy": busy,
        "purpose": subject.purpose,
        "users": subject.users,
        "stand_ins": suite.list_stand_ins(plan, variables),
    }


def _make_outline(facts: Facts) -> BenchedMachine:
    return cast("BenchedMachine", outline.make_outline(facts))


def _describe_end(session: Session | None, outcome: TuneOutcomeOfHost) -> str:
    if not outcome["serves"]:
        return f"what was applied does not serve: {outcome['reason']}"
    if session is None:
        return "nothing was measured; what was applied serves"
    if session.winner is not None and session.winner.gain is not None:
        best = inventory_lines.describe_variables(session.winner.variables)
        return f"{best}: {session.winner.gain:+.0%}"
    return "nothing better was found; what was applied serves"


def _compute_noise(session: Session) -> float | None:
    measured = [row.measured for row in (session.first, session.again) if row and row.measured]
    return rating.compute_noise(rating.combine(*measured)) if measured else None


def _describe_rows(session: Session | None) -> list[TuneRow]:
    return [_describe_row(row) for row in session.rows] if session else []


def _describe_row(row: Row) -> TuneRow:
    return {
        "setting": row.setting or None,
        "label": row.label,
        "variables": {f"kimi_{name}": value for name, value in row.variables.items()},
        "state": row.state,
        "reason": row.reason,
        "estimate": row.estimate,
        "start_s": row.start_s,
        "shift": row.shift,
        "rate": _describe_rate(row.measured),
        "gain": _round(row.gain),
        "rounds": row.rounds,
        "serving": _describe_serving(row),
    }


def _describe_serving(row: Row) -> Serving | None:
    if row.plan is None or not row.rounds:
        return None
    plan: Any = {**row.plan, "instances": len(row.plan["instances"])}
    return cast("Serving", bench.describe_service(plan))


def _describe_rate(measured: Measured | None) -> TuneRate | None:
    if measured is None:
        return None
    return {"low": measured.low, "median": measured.rate, "high": measured.high}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, _FIGURES)


def _list_left_out(subject: Subject, only: Sequence[str]) -> list[TuneLeftOut]:
    return [
        {"name": row.name, "text": row.text, "reason": row.reason}
        for row in candidates.list_left_out(subject.served, only)
    ]
