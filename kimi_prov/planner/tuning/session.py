"""Leads a tune: setting by setting, each candidate on the best so far, what serves first and last.

The measurements come from a function, so nothing here touches a machine.

Decides: the order of a tune, its early stops, and its end.
Held by: tests/unit/planner/tuning/test_session.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.planner.tuning import answers, candidates, rating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TuneRange, TuneRound, TuneState, Variables
    from kimi_prov.contract.documents.tune.jobs import TokenChances
    from kimi_prov.planner.tuning.candidates import Planned, Setting
    from kimi_prov.planner.tuning.rating import Limits, Measured
    from kimi_prov.planner.tuning.subject import Subject

# Rounds of the load for what may win: the least number whose median is not an outlier.
ROUNDS = 3
# Starts of what is rated by them, of what serves as well: the second shows the noise.
_STARTS = 2


class TuneEndedError(Exception):
    """The machine ended the tune by itself: the time was over, or the control machine silent."""


class Trial(NamedTuple):
    """A measurement that is asked for: `plan` None is what serves.

    `start`: whether the engine has to be started first; `answers`: whether the fixed questions are
    asked as well. `limit_s`: seconds after which the load has lost.
    """

    label: str
    plan: MachinePlan | None
    rounds: int
    start: bool
    answers: bool = False
    limit_s: float | None = None


class TrialResult(NamedTuple):
    """What a trial gave; `rounds` as the bench client measured them."""

    ok: bool
    reason: str | None
    start_s: float | None
    answers: TokenChances | None
    rounds: list[TuneRound]
    seconds: float


@dataclass
class Row:
    """A candidate in the report: its `state`, why, and what was measured."""

    setting: str
    label: str
    variables: Variables
    state: TuneState
    reason: str | None = None
    estimate: TuneRange | None = None
    start_s: float | None = None
    shift: float | None = None
    measured: Measured | None = None
    gain: float | None = None
    rounds: list[TuneRound] = field(default_factory=list)
    plan: MachinePlan | None = None


@dataclass
class Session:
    """A tune's result: what serves, measured `first` and `again`, and every candidate."""

    first: Row
    rows: list[Row] = field(default_factory=list)
    again: Row | None = None
    winner: Row | None = None
    note: str = ""


class Leader:
    """Leads one tune. `left_s`: seconds until the unit of the machine ends it."""

    def __init__(
        self,
        subject: Subject,
        settings: Sequence[Setting],
        limits: Limits,
        measure: Callable[[Trial], TrialResult],
        left_s: Callable[[], float],
    ) -> None:
        self._subject, self._settings, self._limits = subject, settings, limits
        self._measure, self._left_s = measure, left_s
        self._base: Variables = {}
        self._plan = subject.served
        self._best: Row | None = None
        self._longest_start_s = self._longest_round_s = self._served_s = 0.0
        self._reference: TokenChances | None = None
        self._served_starts: list[float] = []
        self._quickest: tuple[Row, list[float]] | None = None
        self.session: Session | None = None

    def lead(self) -> Session:
        """Measure what serves, each candidate, and what serves again."""
        first = self._measure_served("what serves", start=False)
        session = self.session = Session(first)
        if first.measured is None:
            session.note = f"what serves was not measured: {first.reason}"
            return session
        self._best = first
        try:
            for setting in self._settings:
                self._try_setting(setting, session)
            if self._best is not first or self._quickest:
                self._confirm(session)
        except TuneEndedError as ended:
            session.note = str(ended)
        return session

    def _try_setting(self, setting: Setting, session: Session) -> None:
        rows = candidates.plan_setting(setting, self._subject, self._base, self._plan)
        ended: dict[str, str] = {}
        for planned in rows:
            row = self._try(
                planned, ended.get(planned.candidate.direction), by_start=setting.by_start
            )
            session.rows.append(row)
            direction = planned.candidate.direction
            if row.state == "better" and setting.by_start:
                self._base, self._plan = dict(planned.candidate.variables), planned.plan
            elif row.state == "better":
                self._base = dict(planned.candidate.variables)
                self._plan, self._best = planned.plan, row
                if direction == "up":
                    ended["down"] = "the other direction was faster"
            elif row.state in ("slower", "failed") and direction != "other":
                ended[direction] = f"{row.label} was not better, and this lies behind it"

    def _try(self, planned: Planned, ended: str | None, *, by_start: bool) -> Row:
        candidate = planned.candidate
        row = Row(
            candidate.setting,
            candidate.label,
            candidate.variables,
            "left out",
            estimate=candidates.estimate(planned.plan, self._subject.purpose),
            plan=planned.plan,
        )
        if planned.obstacle or ended:
            row.reason = planned.obstacle or ended
        elif self._left_s() < self._estimate_need_s():
            row.state, row.reason = "no time", "the time left does not hold it and the way back"
        elif by_start:
            self._measure_starts(row)
        else:
            self._measure_row(row)
        return row

    def _measure_starts(self, row: Row) -> None:
        """Start a candidate as often as what serves, with a round of the load after each start."""
        while len(self._served_starts) < _STARTS:
            done = self._run(Trial("what serves, its start", None, 1, start=True))
            if not done.ok or done.start_s is None:
                row.state, row.reason = "failed", f"what serves was not started: {done.reason}"
                return
            self._served_starts.append(done.start_s)
        starts = []
        for _ in range(_STARTS):
            if self._add_rounds(row, self._make_trial(row, 1, start=True)) is None:
                return
            if row.start_s is None:
                row.state, row.reason = "failed", "its start was not timed"
                return
            starts.append(row.start_s)
        best = self._quickest[1] if self._quickest else self._served_starts
        row.gain = rating.compute_start_gain(starts, self._served_starts)
        served_s = min(self._served_starts)
        row.reason = f"its start takes {max(starts):.0f} s, that of what serves {served_s:.0f}"
        if max(starts) < min(best):
            row.state, self._quickest = "better", (row, starts)
        else:
            row.state = "slower" if min(starts) > max(best) else "no gain"

    def _estimate_need_s(self) -> float:
        """Estimate a candidate, and then what serves once more, by the longest of each so far."""
        return 2 * (self._longest_start_s + ROUNDS * self._longest_round_s)

    def _measure_row(self, row: Row) -> None:
        """Measure one round, and the others unless it shows that they cannot win."""
        best = self._get_best()
        one = self._add_rounds(row, self._make_trial(row, 1, start=True))
        if one and not rating.is_hopeless(one, best):
            one = self._add_rounds(row, self._make_trial(row, ROUNDS - 1, start=False))
        if one is None:
            return
        row.gain = rating.compute_gain(one, best)
        if len(one.rates) > 1 and rating.is_better(one, best):
            row.state = "better"
        else:
            row.state = "slower" if rating.is_better(best, one) else "no gain"
            if not one.keeps:
                row.reason = "it does not keep the limits"

    def _make_trial(self, row: Row, rounds: int, *, start: bool) -> Trial:
        """Make a trial that has lost when it takes far longer than what serves for more rounds.

        Others may work on the machine now and then: as many times as there are rounds, and no less
        than so many times a start.
        """
        limit_s = ROUNDS * max(self._served_s, row.start_s or 0.0)
        return Trial(row.label, row.plan, rounds, start=start, limit_s=limit_s)

    def _add_rounds(self, row: Row, trial: Trial) -> Measured | None:
        """Run a trial and add its rounds to the row; return all of them, None where it failed."""
        done = self._run(trial)
        if trial.start:
            row.start_s = done.start_s
            row.shift, refused = answers.explain_shift(self._reference, done.answers)
            if done.ok and refused:
                row.state, row.reason = "failed", refused
                return None
        if not done.ok:
            row.state, row.reason, row.measured = "failed", done.reason, None
            return None
        before = max((one["round"] for one in row.rounds), default=0)
        row.rounds += [{**one, "round": one["round"] + before} for one in done.rounds]
        row.measured = rating.compute_rates(row.rounds, self._subject.purpose, self._limits)
        return row.measured

    def _measure_served(self, label: str, *, start: bool) -> Row:
        row = Row("", label, {}, "serves", plan=self._subject.served)
        row.estimate = candidates.estimate(self._subject.served, self._subject.purpose)
        trial = Trial(label, None, ROUNDS, start=start, answers=True)
        done = self._run(trial)
        if not done.ok:
            row.state, row.reason = "failed", done.reason
            return row
        if not start:
            self._reference, self._served_s = done.answers, done.seconds
        else:
            row.shift = answers.explain_shift(self._reference, done.answers)[0]
        row.rounds, row.start_s = done.rounds, done.start_s
        row.measured = rating.compute_rates(done.rounds, self._subject.purpose, self._limits)
        return row

    def _run(self, trial: Trial) -> TrialResult:
        done = self._measure(trial)
        if done.ok:
            started = done.start_s or 0.0
            self._longest_start_s = max(self._longest_start_s, started)
            each = max(0.0, done.seconds - started) / trial.rounds
            self._longest_round_s = max(self._longest_round_s, each)
        return done

    def _confirm(self, session: Session) -> None:
        """Measure what serves again: the best wins only where it is better than both together."""
        best = self._best
        session.again = again = self._measure_served("what serves, again", start=True)
        if again.measured is None or best is None or best.measured is None:
            session.note = f"what serves was not measured again: {again.reason}"
            return
        if session.first.measured is None:
            return
        if best is session.first:
            self._confirm_start(session)
            return
        both = rating.combine(session.first.measured, again.measured)
        best.gain = rating.compute_gain(best.measured, both)
        if rating.is_better(best.measured, both):
            best.state, session.winner = "wins", best
        else:
            session.note = "no gain is larger than the noise: what serves stays"
            best.state = "no gain"

    def _confirm_start(self, session: Session) -> None:
        """Name the quickest start the winner where what serves is slower each time."""
        assert self._quickest is not None  # noqa: S101 - asked for nothing else
        assert session.again is not None  # noqa: S101
        row, starts = self._quickest
        served = [*self._served_starts, session.again.start_s or 0.0]
        row.gain = rating.compute_start_gain(starts, served)
        if max(starts) < min(served):
            row.state, session.winner = "wins", row
        else:
            session.note = "no start is quicker beyond the noise: what serves stays"
            row.state = "no gain"

    def _get_best(self) -> Measured:
        assert self._best is not None  # noqa: S101 - set before the first candidate
        assert self._best.measured is not None  # noqa: S101
        return self._best.measured
