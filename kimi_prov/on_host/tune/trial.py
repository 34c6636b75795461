"""Tries one candidate: the engine's parser, a start, its answers, and the load of the tune."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Callable, cast

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench.environment import Engine, has_gpus
from kimi_prov.on_host.bench.load import LIMIT_S
from kimi_prov.on_host.bench.serving import run_client
from kimi_prov.on_host.engine import command_check
from kimi_prov.on_host.lifecycle.run import list_engine_units, wait_for_units
from kimi_prov.on_host.system import machine_key, sandbox, units
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.tune import answers, overlay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TuneRound
    from kimi_prov.contract.documents.tune.jobs import TuneJob, TuneResult
    from kimi_prov.contract.paths import Paths

Say = Callable[[str], None]
# A load on a cold engine may take so many times its start.
_STARTS = 3.0
_KEPT = (
    *("round", "concurrency", "requests", "failed", "seconds", "input_tokens", "output_tokens"),
    *("ttft_s", "tpot_s", "decode_tok_s", "aggregate_tok_s"),
)


def try_candidate(paths: Paths, served: MachinePlan, job: TuneJob, say: Say) -> TuneResult:
    """Start a candidate and measure it; a failure is a result too: its `stage` and `reason`.

    `job`: `drop_ins` and `instances` of the candidate, none of them for what serves; `start`
    whether its engine has to be started; the `load` with its `prompts`.
    """
    plan = cast("MachinePlan", {**served, "instances": job["instances"] or served["instances"]})
    result: TuneResult = {
        "ok": False,
        "stage": None,
        "reason": None,
        "start_s": None,
        "answers": None,
        "rounds": [],
    }
    stage = "parser"
    try:
        if job["start"]:
            check_command(plan)
            stage, began = "start", time.monotonic()
            start_engine(served, job["drop_ins"], say)
            result["start_s"] = round(time.monotonic() - began, 1)
            stage = "answers"
            say("asking the questions of every candidate")
            result["answers"] = answers.ask(plan)
        elif job["answers"]:
            stage = "answers"
            result["answers"] = answers.ask(plan)
        stage, runs = "load", _read_invocations(served)
        # The first requests of a cold engine wait like its start.
        limit_s = job["limit_s"] and max(job["limit_s"], _STARTS * (result["start_s"] or 0.0))
        result["rounds"] = _measure(paths, plan, job, say, limit_s or LIMIT_S)
        _require_same_run(served, runs)
    except HostError as error:
        return {**result, "stage": stage, "reason": error.message}
    return {**result, "ok": True}


def check_command(plan: MachinePlan) -> None:
    """Ask the engine's own parser. Raises HostError with its reason."""
    confined = partial(sandbox.run, gpus=has_gpus(plan), binds=False)
    for instance in plan["instances"]:
        refusal = command_check.ask(instance["argv"], dict(instance["env"]), run=confined)
        if refusal:
            raise HostError(refusal)


def start_engine(served: MachinePlan, drop_ins: Mapping[str, str], say: Say) -> None:
    """Start the engine with these drop-ins, none for what serves. Raises HostError."""
    names = list_engine_units(served)
    if drop_ins:
        overlay.put(drop_ins)
    else:
        overlay.remove()
    run("systemctl", "stop", *names, timeout=units.CHANGE_TIMEOUT_S)
    run("systemctl", "reset-failed", *names)
    units.run_systemctl("start", "--no-block", *names)
    until = time.monotonic() + float(served["timeouts"]["start_s"])
    wait_for_units(names, until, lambda line: say(f"the engine is loading: {line}"))


def _read_invocations(served: MachinePlan) -> list[str]:
    shown = units.read_properties(list_engine_units(served), ["InvocationID"])
    return sorted(row.get("InvocationID", "") for row in shown.values())


def _require_same_run(served: MachinePlan, runs: list[str]) -> None:
    if _read_invocations(served) != runs:
        raise HostError(
            "its engine ended or hung under the load, and was started again",
            f"journalctl -u {list_engine_units(served)[0]} -u {unit_names.WATCHDOG}",
        )


def _measure(
    paths: Paths, plan: MachinePlan, job: TuneJob, say: Say, limit_s: float
) -> list[TuneRound]:
    """Run the load at the engine's own port; return a row for each round and number at once."""
    port = plan["instances"][0]["port"]
    behind = (f"http://127.0.0.1:{port}", machine_key.read(paths.machine_key))
    request = {"load": job["load"], "prompts": job.get("prompts") or []}
    began = time.monotonic()
    try:
        done = run_client(plan, paths, Engine(plan, limit_s), say, request, behind)
    except HostError:
        if time.monotonic() - began < limit_s:
            raise
        raise HostError(
            f"its load was ended after {limit_s:.0f} s: what serves needs far less for more rounds"
        ) from None
    rows = []
    for planned, result in zip(done.runs, done.results):
        if planned["round"]:
            row = {**result, "round": planned["round"]}
            rows.append(cast("TuneRound", {name: row[name] for name in _KEPT}))
    failed = sum(row["failed"] for row in rows)
    if failed:
        raise HostError(f"{failed} requests failed under the load")
    return rows
