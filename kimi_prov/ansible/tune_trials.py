"""Leads the unit of a tune on the machine: starts it, gives it trials, and awaits the way back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.ansible import serve_units, switching
from kimi_prov.ansible.remote import RemoteError, call, wait_reachable
from kimi_prov.planner.tuning.session import TrialResult, TuneEndedError

if TYPE_CHECKING:
    from kimi_prov.ansible.host_action import HostAction
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TuneOutcomeOfHost
    from kimi_prov.contract.documents.tune.jobs import (
        TuneAnswer,
        TuneJob,
        TuneOptions,
        TuneRequest,
    )
    from kimi_prov.planner.tuning.session import Trial

_POLL_INTERVAL_S = 1.0
# The unit waits longer for the control machine (requests.MAX_SILENCE_S on the machine).
_UNREACHABLE_S = 120.0
# The resets of what a drop-in sets: lists grow otherwise, and a second command is refused.
_RESETS = ("ExecStartPre=", "ExecStart=", "ExecStartPost=")


def build_overlays(served: MachinePlan, planned: MachinePlan) -> dict[str, str]:
    """Return the drop-ins, by unit, that make the units of what serves run the planned engine."""
    options = serve_units.Options(0, 0, 0, 0)
    units = serve_units.render(planned, options)
    unpatched = serve_units.render(served, options).drop_ins
    overlays = {}
    for unit, text in units.drop_ins.items():
        before = next(row["env"] for row in served["instances"] if row["unit"] == unit)
        after = next(row["env"] for row in planned["instances"] if row["unit"] == unit)
        dropped = sorted(set(before) - set(after))
        lines = ["# A candidate of `kimi-prov tune`; gone with the next boot.", "[Service]"]
        lines += [*_RESETS, *(["CPUAffinity="] if "CPUAffinity=" in unpatched[unit] else [])]
        lines += [f"UnsetEnvironment={name}" for name in dropped]
        overlays[unit] = "\n".join([*lines, text])
    return overlays


class Trials:
    """The trials of one machine. `load`: the load of the bench client, without its rounds."""

    def __init__(self, action: HostAction, served: MachinePlan, request: TuneOptions) -> None:
        self._action, self._served, self._request = action, served, request
        self._turn = 0
        self._until_s = 0.0

    def start(self) -> None:
        """Start the unit: from now on clients are refused until it has ended."""
        within_s = float(self._request["within_s"])
        request: TuneRequest = {
            "drain_s": float(self._request["drain_s"]),
            "limit_s": within_s,
            "by_run": switching.build_request(self._action.variables),
        }
        call(self._action, "tune", "start", stdin=request)
        self._until_s = time.monotonic() + within_s

    def left_s(self) -> float:
        """Return the seconds until the unit ends by itself."""
        return self._until_s - time.monotonic()

    def run(self, trial: Trial) -> TrialResult:
        """Run one trial. Raises TuneEndedError where the unit has ended by itself."""
        self._turn += 1
        began = time.monotonic()
        planned = trial.plan
        job: TuneJob = {
            "do": "try",
            "turn": self._turn,
            "start": trial.start,
            "answers": trial.answers,
            "limit_s": trial.limit_s,
            "drop_ins": build_overlays(self._served, planned) if planned and trial.start else {},
            "instances": planned["instances"] if planned else None,
            "load": {**self._request["load"], "rounds": trial.rounds},
            "prompts": self._request.get("prompts") or [],
        }
        wait_reachable(
            self._action, _UNREACHABLE_S, lambda: call(self._action, "tune", "try", stdin=job)
        )
        while True:
            answer = _poll(self._action)
            result = answer["result"]
            if result and result["turn"] == self._turn:
                return TrialResult(
                    result["ok"],
                    result["reason"],
                    result["start_s"],
                    result["answers"],
                    result["rounds"],
                    time.monotonic() - began,
                )
            if not answer["running"]:
                raise TuneEndedError("the machine ended the tune: its time was over")
            self._action.report(phase="tune", line=f"{trial.label}: {answer['line']}")
            time.sleep(_POLL_INTERVAL_S)


def end_tune(action: HostAction, *, now: bool) -> TuneOutcomeOfHost:
    """Have what serves come back, and wait for that. Raises RemoteError where nothing says so.

    `now`: a trial under way is ended too.
    """
    job: TuneJob = {"do": "end", "now": now}
    wait_reachable(action, _UNREACHABLE_S, lambda: call(action, "tune", "try", stdin=job))
    while True:
        answer = _poll(action)
        if not answer["running"]:
            break
        action.report(phase="tune", line=answer["line"] or "what serves comes back")
        time.sleep(_POLL_INTERVAL_S)
    if answer["outcome"] is None:
        raise RemoteError(
            "the tune ended without a word of what serves",
            "kimi-prov status shows what runs; kimi-prov restart starts it again",
        )
    return answer["outcome"]


def _poll(action: HostAction) -> TuneAnswer:
    answer: TuneAnswer = wait_reachable(
        action, _UNREACHABLE_S, lambda: call(action, "tune", "poll")
    )
    return answer
