"""Action `kimi_tune`: say what a tune would try, or try it and bring back what serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import tune
from kimi_prov.ansible import gateway_hosts, host_settings
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure, call
from kimi_prov.ansible.tune_trials import Trials, end_tune
from kimi_prov.catalog import loader
from kimi_prov.on_host.probe import measure
from kimi_prov.planner.tuning import candidates
from kimi_prov.planner.tuning.rating import Limits
from kimi_prov.planner.tuning.session import Leader, TuneEndedError
from kimi_prov.planner.tuning.subject import Subject, find_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.load import BenchLoad
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TuneOutcomeOfHost
    from kimi_prov.contract.documents.tune.jobs import TuneLookAnswer, TuneOptions

DOCUMENTATION = """
module: kimi_tune
short_description: Tries other settings of an engine, and brings back what serves
options:
  state:
    type: str
    choices: [planned, run, ended]
    required: true
    description:
      - C(planned) says what would be tried; C(run) tries it. Both give the host's document.
      - C(ended) ends a tune whose control machine was interrupted, and waits for what serves.
  request:
    type: str
    default: ''
    description: A file of the control machine with the load, the limits and the time.
  plan:
    type: dict
    default: {}
    description: The plan that was applied.
  facts:
    type: dict
    default: {}
    description: What was found of the machine.
"""

# The result of a task.
Result = dict[str, Any]


class ActionModule(HostAction):
    """Whatever happens between, what serves comes back, and its return is awaited."""

    SKIPPED_IN_CHECK_MODE = "nothing is tried"
    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> Result:
        """Plan, run or end."""
        if args["state"] == "ended":
            return self._end()
        plan: MachinePlan = args["plan"]
        refused = find_refusal(plan)
        if refused:
            return build_failure(f"{self.host}: {refused[0]}", refused[1], "bad_input")
        request: TuneOptions = json.loads(Path(args["request"]).read_text(encoding="utf-8"))
        subject = self._make_subject(plan, args["facts"], request)
        only = request["only"]
        answer: TuneLookAnswer = call(self, "tune", "look")
        if args["state"] == "planned":
            settings = candidates.select_settings(only)
            preview = tune.make_preview(subject, settings, only, answer["expected"], self.variables)
            return {"kimi_document": preview}
        return self._run(
            subject, answer["load"], {**request, "load": _choose_levels(request, subject)}
        )

    def _make_subject(self, plan: MachinePlan, facts: Facts, request: TuneOptions) -> Subject:
        locate = host_settings.make_host_locator(self)
        settings = host_settings.read_settings(self, locate)
        return Subject(
            facts,
            settings,
            loader.load_catalogue(),
            plan,
            request["purpose"] or settings.optimise,
            _choose_users(request, settings.concurrency),
            gateway_hosts.list_gateways(self.variables),
        )

    def _run(self, subject: Subject, average: float, request: TuneOptions) -> Result:
        trials = Trials(self, subject.served, request)
        limits = Limits(request["ttft_s"], request["tpot_s"])
        settings = candidates.select_settings(request["only"])
        leader = Leader(subject, settings, limits, trials.run, trials.left_s)
        led = False
        trials.start()
        try:
            leader.lead()
            led = True
        except TuneEndedError as ended:
            self._display.vvv(str(ended))
        finally:
            outcome: TuneOutcomeOfHost = end_tune(self, now=not led)
        busy = measure.is_busy(average, subject.facts)
        document = tune.make_document(
            subject, leader.session, request["only"], outcome, self.variables, busy=busy
        )
        result: Result = {"kimi_document": document}
        if not outcome["serves"]:
            fix = outcome["fix"] or "kimi-prov status shows why; kimi-prov restart starts it again"
            result |= build_failure(f"{self.host}: {document['detail']}", fix)
        return result

    def _end(self) -> Result:
        outcome = end_tune(self, now=True)
        if outcome["serves"]:
            return {"msg": "what was applied serves again"}
        return build_failure(
            f"{self.host}: what was applied does not serve: {outcome['reason']}", outcome["fix"]
        )


def _choose_users(request: TuneOptions, concurrency: int) -> int:
    """Return the requests at once of the load; more than serve now, so that more can win."""
    usual = 1 if request["purpose"] == "latency" else max(concurrency, request["usual_users"])
    return int(request["users"] or usual)


def _choose_levels(request: TuneOptions, subject: Subject) -> BenchLoad:
    """Return the load with its numbers of requests at once: one alone, all together, or both."""
    levels = {
        "latency": {1, subject.users},
        "throughput": {subject.users},
        "balanced": {1, subject.users},
    }
    return {**request["load"], "concurrency": sorted(levels[subject.purpose])}
