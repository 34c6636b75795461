"""`tune look|start|try|poll|run|restore`: the machine's part of a tune.

    tune look              how long a start takes
    tune start < REQUEST   start kimi-tuning.service, which drains the engine
    tune try < JOB         give it a candidate, or the end
    tune poll              what it does now, and the last result
    tune run               the work of the unit
    tune restore           after the unit, however it ended: what serves comes back

The unit ends by itself where the control machine is silent for too long, and at the end of the
time; then, and after a signal or an error, the drop-ins of the candidate go and the engine starts
as it was applied.

Decides: what brings back what serves after a tune.
Applied by: playbooks/tune.yml.
Held by: tests/unit/on_host/tune/test_tune_overlay.py, tests/lab/test_tune.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import draining, stop_state
from kimi_prov.on_host.history import entries, open_switch
from kimi_prov.on_host.lifecycle import starts, status
from kimi_prov.on_host.lifecycle.run import list_engine_units, read_applied_plan, wait_for_units
from kimi_prov.on_host.system import apply_lock, files, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.tune import overlay, requests, trial

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import Done
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune.jobs import (
        TuneAnswer,
        TuneJob,
        TuneLookAnswer,
        TuneRequest,
    )

_POLL_INTERVAL_S = 1.0
END = "end"
_WORKING = ("active", "activating")


def look(paths: Paths) -> TuneLookAnswer:
    """Return how long a start of the engine takes. Raises HostError where nothing serves."""
    plan = read_applied_plan(paths)
    if not groups.serves_clients(plan):
        raise groups.make_head_only_error(plan, "a tune measures the model")
    if rests := status.find_refusal(paths):
        raise rests
    held = starts.find_weights_place(plan, {})
    return {
        "ok": True,
        "load": os.getloadavg()[0],
        "expected": starts.estimate_start(paths, plan, held),
    }


def start(paths: Paths, request: TuneRequest) -> Done:
    """Start the unit that tries candidates. `request`: `drain_s`, `limit_s`, and who asks."""
    look(paths)
    run("systemctl", "stop", unit_names.TUNING)
    run("systemctl", "reset-failed", unit_names.TUNING)
    requests.clear()
    files.remove(requests.OUTCOME)
    requests.write(requests.REQUEST, {**request, "at_s": time.monotonic()})
    requests.note_poll()
    command = (sys.executable, "-I", layout.ZIPAPP, "tune")
    done = run(
        *("systemd-run", "--quiet", "--collect", f"--unit={unit_names.TUNING}"),
        "--description=Kimi: trying other settings of the engine",
        "--service-type=exec",
        # Bringing back what serves takes as long as a start, which has a limit of its own.
        "--property=TimeoutStopSec=infinity",
        "--property=KillMode=mixed",
        f"--property=ExecStopPost={' '.join((*command, 'restore'))}",
        *(*command, "run"),
    )
    if done.returncode != 0:
        requests.clear()
        raise HostError(f"{unit_names.TUNING} cannot be started: {done.stderr.strip()}")
    return {"ok": True}


def give(job: TuneJob) -> Done:
    """Give the unit its next job; where it has ended, nothing is left behind."""
    if _read_state() in _WORKING:
        requests.note_poll()
        requests.write(requests.JOB, job)
        if job.get("now"):
            run("systemctl", "stop", "--no-block", unit_names.TUNING)
    return {"ok": True}


def poll() -> TuneAnswer:
    """Return whether the unit works, its line, its last result, and how it ended."""
    apply_lock.renew()
    state = _read_state()
    if state in _WORKING:
        requests.note_poll()
    return {
        "ok": True,
        # It brings back what serves while it is deactivating.
        "running": state in (*_WORKING, "deactivating"),
        "line": str(files.read_json(layout.TUNE_PROGRESS).get("line") or ""),
        "result": requests.read_result(),
        "outcome": requests.read_outcome(),
    }


def _read_state() -> str:
    return str(units.read_states(unit_names.TUNING)[unit_names.TUNING]["state"])


# --- the unit ----------------------------------------------------------------------------------


def serve_jobs(paths: Paths) -> int:
    """Drain the engine, and do the jobs of the control machine until it gives the last one."""
    request, plan = requests.read_request(), read_applied_plan(paths)
    signal.signal(signal.SIGTERM, _leave)
    _watch_control(request)
    entry = _open_entry(paths, request)
    requests.write(requests.REQUEST, {**request, "entry": entry})
    _report("waiting for answers under way")
    draining.drain(paths, float(request["drain_s"]))
    done = 0
    while True:
        job = requests.read_job()
        if job.get("do") == END:
            return 0
        if job and int(job["turn"]) > done:
            done = int(job["turn"])
            result = trial.try_candidate(paths, plan, job, _report)
            requests.write(requests.RESULT, {**result, "turn": done})
        time.sleep(_POLL_INTERVAL_S)


def _report(line: str) -> None:
    print(line, flush=True)
    files.write_json(layout.TUNE_PROGRESS, {"line": line}, durable=False)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


def _watch_control(request: TuneRequest) -> None:
    """End this process where the control machine is silent, and at the end of the time."""
    until = float(request["at_s"]) + float(request["limit_s"])

    def watch() -> None:
        while True:
            time.sleep(_POLL_INTERVAL_S)
            if time.monotonic() > until:
                break
            if requests.measure_silence() > requests.MAX_SILENCE_S:
                print("the control machine is silent: ending the tune", flush=True)
                break
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _open_entry(paths: Paths, request: TuneRequest) -> int | None:
    """Open an entry of the history; a tune does not fail because the disk is full."""
    try:
        entry = entries.open_entry(paths, entries.TUNE, request.get("by_run") or {})
    except OSError as error:
        print(f"no entry in the history: {describe_error(error)}", flush=True)
        return None
    return int(entry["number"])


# --- the way back ------------------------------------------------------------------------------


def restore(paths: Paths) -> int:
    """Bring back what serves, and write how the tune ended; 1 where it does not answer."""
    request, plan = requests.read_request(), read_applied_plan(paths)
    job = requests.read_job()
    finished = job.get("do") == END and not job.get("now")
    began, problem = time.monotonic(), None
    try:
        _restore_engine(plan)
    except HostError as error:
        problem = error
    try:
        draining.set_state(paths, draining.READY)
    except HostError as error:
        problem = problem or error
    away = round(time.monotonic() - float(request.get("at_s") or began), 1)
    _close_entry(paths, request, problem, finished=finished, away=away)
    requests.clear()
    requests.write(
        requests.OUTCOME,
        {
            "serves": problem is None,
            "finished": finished,
            "reason": problem.message if problem else None,
            "fix": problem.fix if problem else None,
            "seconds": away,
        },
    )
    files.remove(layout.TUNE_PROGRESS)
    return 1 if problem else 0


def _restore_engine(plan: MachinePlan) -> None:
    """Start the engine as it was applied, where it runs otherwise or not at all."""
    names = list_engine_units(plan)
    tried = overlay.remove()
    if stop_state.read(Paths()):
        return
    states = units.read_states(*names)
    if not tried and all(states[name]["state"] == "active" for name in names):
        return
    run("systemctl", "stop", *names, timeout=units.CHANGE_TIMEOUT_S)
    run("systemctl", "reset-failed", *names)
    units.run_systemctl("start", "--no-block", *names)
    until = time.monotonic() + float(plan["timeouts"]["start_s"])
    wait_for_units(names, until, partial(print, flush=True))


def _close_entry(
    paths: Paths,
    request: TuneRequest,
    problem: HostError | None,
    *,
    finished: bool,
    away: float,
) -> None:
    opened = request.get("entry")
    if opened is None:
        return
    ended = entries.DONE if finished else entries.INTERRUPTED
    try:
        entry = entries.read(paths, opened)
        if entry:
            open_switch.end_entry(
                paths,
                entry,
                entries.FAILED if problem else ended,
                why=problem.message if problem else None,
                serves=entries.describe_served(paths),
                seconds_without_service=away,
            )
    except (OSError, HostError) as error:
        print(f"the history has no end of this tune: {describe_error(error)}", flush=True)


def main(argv: list[str]) -> int:
    """Run one of the verbs in the module's docstring."""
    paths, verb = Paths(), argv[0] if len(argv) == 1 else ""
    if verb == "run":
        return serve_jobs(paths)
    if verb == "restore":
        return restore(paths)
    if verb == "look":
        return answer(look(paths))
    if verb == "start":
        return answer(start(paths, json.load(sys.stdin)))
    if verb == "try":
        return answer(give(json.load(sys.stdin)))
    if verb == "poll":
        return answer(poll())
    raise HostError("usage: tune look|start|try|poll|run|restore")
