"""A machine of which the speed is known, as a tune measures it, and the documents of its tunes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from plan_inputs import LAB_SETTINGS, metal_facts

from kimi_prov.acceptance import tune
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.planner.tuning import candidates
from kimi_prov.planner.tuning.rating import Limits
from kimi_prov.planner.tuning.session import Leader, Session, Trial, TrialResult, TuneEndedError
from kimi_prov.planner.tuning.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable


NOISE = (1.0, 0.98, 1.02)


class Machine:
    """Answers trials: `speed` of the requests at once and the threads of an engine."""

    def __init__(self, speed: Callable[[int, int], float], seconds: float = 1.0) -> None:
        variables = LAB_SETTINGS | {"kimi_concurrency": 1, "kimi_threads": 2}
        settings, catalogue = parse_settings(variables, host="h1"), load_catalogue()
        facts: Any = metal_facts(nodes=1, gib=64, cores=8)
        served = make_plan(facts, settings, catalogue)
        self.subject = Subject(facts, settings, catalogue, served, "throughput", 8)
        self.speed, self.seconds = speed, seconds
        self.trials: list[Trial] = []
        self.failing: dict[str, str] = {}
        self.left = 3600.0
        self.likely: dict[str, float] = {}
        self.quick: dict[str, float] = {}

    def measure(self, trial: Trial) -> TrialResult:
        self.trials.append(trial)
        self.left -= self.seconds
        if self.left < 0:
            raise TuneEndedError("the time was over")
        if reason := self.failing.get(trial.label):
            return TrialResult(False, reason, None, None, [], self.seconds)
        plan = trial.plan or self.subject.served
        argv, env = plan["instances"][0]["argv"], plan["instances"][0]["env"]
        requests = int(argv[argv.index("--max-num-seqs") + 1])
        first, _, last = env["VLLM_CPU_OMP_THREADS_BIND"].partition("-")
        rate = self.speed(requests, int(last or first) - int(first) + 1)
        likely = self.likely.get(trial.label, 0.9)
        answers = [[{"a": math.log(likely), "b": math.log(1 - likely)}]]
        rounds = [
            {
                "round": turn,
                "concurrency": 8,
                "requests": 8,
                "failed": 0,
                "seconds": 1.0,
                "input_tokens": 8,
                "output_tokens": 80,
                "ttft_s": {"median": 0.1, "p99": None},
                "tpot_s": {"median": 0.01, "p99": None},
                "decode_tok_s": 100.0,
                "aggregate_tok_s": rate * NOISE[(turn - 1) % 3],
            }
            for turn in range(1, trial.rounds + 1)
        ]
        start_s = self.quick.get(trial.label, self.seconds / 2) if trial.start else None
        return TrialResult(True, None, start_s, answers, rounds, self.seconds)

    def tune(self, *only: str) -> Session:
        settings = candidates.select_settings(only or ("requests", "threads"))
        leader = Leader(self.subject, settings, Limits(), self.measure, lambda: self.left)
        return leader.lead()


def tuned_host(session: Session | None = None, machine: Machine | None = None) -> dict[str, Any]:
    """A host's part of the document after a tune in which four threads and requests are best."""
    machine = machine or Machine(lambda requests, count: 10.0 * min(requests, 4) * min(count, 4))
    session = session or machine.tune()
    outcome: Any = {
        "serves": True, "finished": True, "reason": None, "fix": None, "seconds": 812.4,
    }  # fmt: skip
    return tune.make_document(machine.subject, session, [], outcome, {})


def preview_of_host() -> dict[str, Any]:
    """A host's part of what is said before a tune."""
    machine = Machine(lambda requests, _: float(requests))
    expected: Any = {"seconds": 61.0, "basis": "the last 3 starts on this machine took 61.0 s"}
    settings = candidates.select_settings([])
    return tune.make_preview(machine.subject, settings, [], expected, {})
