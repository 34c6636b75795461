"""Stops, starts and restarts what a machine serves, keeping everything else that was applied.

    rest stop < REQUEST      write the stop state, and start kimi-rest.service, which stops
    rest start < REQUEST     remove the stop state and start the engines; says how long that takes
    rest restart < REQUEST   start kimi-rest.service, which restarts one instance after the other
    rest started             record how long the start took
    rest outcome             the result of the last run of kimi-rest.service
    rest run                 the work of kimi-rest.service
    rest idle                kimi-idle.service: measure the idle time, and sleep after the limit
    rest keep                kimi-sessions.service: store the session's cost in the bucket
    rest keep REASON         the same, for a session that ends now

The stop state is written before anything else, and removed before the engines start: a machine
whose power fails in between boots into the requested state.

Decides: what stops a machine on purpose, and what its clients get as an answer.
Applied by: playbooks/stop.yml, playbooks/start.yml, playbooks/restart.yml.
Held by: tests/component/on_host/lifecycle/test_stopping.py,
  tests/component/on_host/lifecycle/test_stopped.py, tests/lab/test_stop.py.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import clean_text, groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.durations import describe_duration, format_duration
from kimi_prov.contract.errors import NOT_APPLIED, HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import draining, haproxy, smoke_test, stop_log, stop_state
from kimi_prov.on_host.engine import engine_sleep
from kimi_prov.on_host.lifecycle import idle, savings, session_history, starts, status
from kimi_prov.on_host.system import apply_lock, files, group_state, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.system.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.answers import LifecycleAnswer
    from kimi_prov.contract.documents.plan import MachinePlan

Tell = Callable[[str], None]
STOP, RESTART, SLEEP = "stop", "restart", "sleep"
FREE, KEEP = "free", "keep"
_POLL_INTERVAL_S = 1.0
# Seconds between a start and the wait for it.
_BEGUN_S = 5.0
# Seconds for answers that begin at the last moment.
_SLEEP_DRAIN_S = 300.0
# Seconds before a stop for the budget that failed is tried again.
_MIN_END_INTERVAL_S = 300.0
# Seconds added to a unit's own limit, after which systemd kills its processes.
_STOP_LIMIT_S = 900.0


def read_applied_plan(paths: Paths) -> MachinePlan:
    """Return the plan that was applied. Raises HostError where this version did not apply it."""
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        raise HostError(*NOT_APPLIED)
    if "rest" not in plan:
        raise HostError(
            "an earlier version of kimi-prov applied what is here: its units and its proxy know of "
            "no stop",
            "run `kimi-prov apply` first, which restarts no engine for that",
        )
    return plan


def _require_whole_group(plan: MachinePlan, request: Mapping[str, Any]) -> None:
    """Raise HostError where a host of the group is not part of this run."""
    group = plan.get("group")
    hosts = {*request.get("hosts", ())}
    missing = [row["host"] for row in group["members"] if row["host"] not in hosts] if group else []
    if group and missing:
        raise HostError(
            f"{', '.join(missing)} serves together with this host and is not in this run, or "
            f"failed before: the hosts of group {group['name']} stop and start together",
            "fix its failure; give no --limit, or one with all hosts of the group",
        )


def list_engine_units(plan: MachinePlan) -> list[str]:
    """Name the units that run the engine."""
    return [unit_names.get_engine_unit(row) for row in plan["instances"]]


# --- stop --------------------------------------------------------------------------------------


def stop(paths: Paths, request: Mapping[str, Any]) -> LifecycleAnswer:
    """Mark this host as stopped, and start the unit that drains and stops it.

    `request`: `drain_s`, `by`, and `part`: `serving` for hosts with an endpoint, `rank` for the
    other hosts of groups. A host of the other part does nothing and answers `left_out`.
    """
    plan = read_applied_plan(paths)
    _require_whole_group(plan, request)
    if (request["part"] == "serving") != groups.serves_clients(plan):
        return {"left_out": True, "started": False}
    was = stop_state.read(paths)
    if was.get("state") != stop_state.STOPPED:
        if was:
            stop_log.record_rest(paths, was)
        made = stop_state.build_state(
            stop_state.STOPPED, "stopped by the operator", by=request.get("by")
        )
        stop_state.write(paths, made)
    else:
        stop_state.publish(paths)
    return {
        "left_out": False,
        "was": was.get("state") or "serving",
        **launch(paths, {"job": STOP, "drain_s": float(request["drain_s"])}),
    }


def launch(paths: Paths, job: Mapping[str, Any]) -> LifecycleAnswer:
    """Start a job in its own unit, which goes on when the connection is cut."""
    begun = {**job, "at_s": time.monotonic()}
    files.write_json(str(paths.rest_job), begun, durable=False, mode=0o600)
    run("systemctl", "stop", unit_names.REST)
    run("systemctl", "reset-failed", unit_names.REST)
    done = run(
        *("systemd-run", "--quiet", "--no-block", f"--unit={unit_names.REST}"),
        "--description=Kimi: stop or restart what is served",
        *("--service-type=oneshot", "--remain-after-exit"),
        # The unit has no limit of its own: it waits for answers under way and for engines, which
        # have theirs.
        "--property=TimeoutStartSec=infinity",
        *(sys.executable, "-I", layout.ZIPAPP, "rest", "run"),
    )
    if done.returncode != 0:
        raise HostError(f"{unit_names.REST} cannot be started: {done.stderr.strip()}")
    return {"started": True, "unit": unit_names.REST, "progress": layout.REST_PROGRESS}


def stop_engines(paths: Paths, plan: MachinePlan, limit_s: float, tell: Tell) -> dict[str, Any]:
    """Drain and stop the engines, and free the memory of the weights where that is requested.

    Returns `cut`, the number of requests that did not end in time, and `seconds` of the whole stop.
    """
    began = time.monotonic()

    def waiting(left: int) -> None:
        tell(
            f"{_format_request_count(left)} under way: waiting until they end, "
            f"{format_duration(limit_s)} at most"
        )

    # A client that asks while the machine falls asleep waits for the next start, not for this stop.
    handed = stop_state.read(paths).get("state") != stop_state.ASLEEP
    serves = groups.serves_clients(plan)
    cut = draining.drain(paths, limit_s, tell=waiting, handed=handed) if serves else 0
    starts.record_start(paths, plan)
    tell("stopping the engine")
    names = list_engine_units(plan)
    done = run("systemctl", "stop", *names, timeout=_STOP_LIMIT_S)
    if done.returncode != 0:
        raise HostError(
            f"the engine was not stopped: {clean_text.clean_line(done.stderr.strip())}",
            f"see  systemctl status {names[0]}  and run `kimi-prov stop` again",
        )
    run("systemctl", "reset-failed", *names)
    if plan["rest"]["memory"] == FREE:
        _free_memory(plan, tell)
    return {"cut": cut, "seconds": round(time.monotonic() - began, 1)}


def _format_request_count(count: int) -> str:
    return f"{count} request{'s' if count != 1 else ''}"


def _free_memory(plan: MachinePlan, tell: Tell) -> None:
    """Free the memory of the RAM disk; nothing fills it before the next start."""
    for name in reversed(starts.list_memory_units(plan)):
        tell(f"stopping {name}")
        words = ("disable", "--now") if name.endswith(".service") else ("stop",)
        units.run_systemctl(*words, "--quiet", name)


def _run_stop(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    done = stop_engines(paths, plan, float(job["drain_s"]), tell)
    found = stop_state.read(paths)
    if found:
        try:
            stop_state.write(paths, {**found, "cut": done["cut"]})
        except OSError as error:
            # The machine is stopped and marked as stopped: this does not fail the stop.
            tell(f"the number of cut requests is not stored: {describe_error(error)}")
    files.write_json(str(paths.rest_job), {**job, **done}, durable=False, mode=0o600)
    ended = f"{_format_request_count(done['cut'])} cut" if done["cut"] else "no request was cut"
    return f"stopped in {format_duration(done['seconds'])}; {ended}"


# --- idle --------------------------------------------------------------------------------------


def check_idle(paths: Paths) -> str:
    """Update the idle time, and put the machine to sleep when it is long enough."""
    plan = read_applied_plan(paths)
    if not plan["rest"].get("idle"):
        return ""
    stop_log.record_power_on(paths)
    found, news = idle.update_idle_time(paths, plan)
    paid = savings.count_time(paths, plan, found)
    news = "; ".join(part for part in (paid.news, news) if part)
    if paid.over and _may_end(paths):
        launch(paths, {"job": SLEEP, "used": None, "drain_s": _SLEEP_DRAIN_S, "over": True})
        return f"{news or 'over the budget'}: stopping"
    if found["asleep_in_s"] != 0:
        if session_history.is_due(paths, plan):
            session_history.start_saving(paths)
        return news
    launch(paths, {"job": SLEEP, "used": found["used"], "drain_s": _SLEEP_DRAIN_S})
    return "idle for long enough: going to sleep"


def _may_end(paths: Paths) -> bool:
    """Return whether a stop for the budget may begin: none runs, and none failed a moment ago."""
    if stop_state.read(paths) or apply_lock.find_holder() or paths.switch.exists():
        return False
    if units.read_states(unit_names.REST)[unit_names.REST]["state"] in (
        "activating",
        "deactivating",
    ):
        return False
    last = files.read_json(paths.rest_job)
    return (
        not last.get("over")
        or time.monotonic() - float(last.get("at_s") or 0) > _MIN_END_INTERVAL_S
    )


def _run_sleep(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    """Do what the inventory requests: sleep, switch the machine off, or run the operator's hook."""
    chosen = idle.get_planned(plan)
    asked = not job.get("over") and haproxy.read_variable(paths.socket, idle.USED) != job["used"]
    if asked or apply_lock.find_holder():
        return "staying awake: a request came at the last moment"
    try:
        ended = _RESTS[chosen["action"]](paths, plan, job, tell)
        return "; ".join(part for part in (ended, savings.describe_cost(paths, plan)) if part)
    except (HostError, OSError) as error:
        found = error if isinstance(error, HostError) else HostError.from_system(error)
        idle.record_failure(paths, plan, found.message)
        raise found from None


def _put_to_sleep(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    stop_state.write(paths, _build_sleep_state(plan, job))
    return _run_stop(paths, plan, job, tell)


def _build_sleep_state(plan: MachinePlan, job: Mapping[str, Any]) -> dict[str, Any]:
    if job.get("over"):
        # No request wakes a machine that is over its budget.
        why = "the budget of this session is used up; the operator raises it and applies again"
        return stop_state.build_state(stop_state.ASLEEP, why, wake="off")
    wakes = plan["rest"]["wake"]
    after = describe_duration(float(idle.get_planned(plan)["after_s"]))
    how = "the operator starts it: kimi-prov start" if wakes == "off" else "a request wakes it"
    return stop_state.build_state(stop_state.ASLEEP, f"nobody asked for {after}; {how}", wake=wakes)


def _describe_end(over: object) -> str:
    """Write to the history of sessions why a session ends."""
    return "its budget was used up" if over else "nobody asked"


def _power_off(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    """Switch the machine off: it serves again after its next boot."""
    starts.record_start(paths, plan)
    try:
        draining.drain(paths, float(job["drain_s"]))
        session_history.save_end(paths, plan, _describe_end(job.get("over")), tell)
        tell("switching the machine off")
        stop_log.record_power_off(paths, stop_state.build_state(stop_state.OFF, "nobody asked"))
        units.run_systemctl("poweroff")
    except (HostError, OSError):
        stop_log.record_power_off(paths, None)
        draining.set_state(paths, draining.READY)
        raise
    return "switching the machine off: nobody asked"


def _run_hook(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    """Run the operator's program once answers have ended; where it fails, serve again.

    It is run even if a full disk prevents writing the stop state: the program may end what the
    machine costs. A machine that still runs afterwards serves again.
    """
    unmarked = None
    try:
        try:
            stop_state.write(paths, _build_sleep_state(plan, job))
        except OSError as error:
            unmarked = error
        draining.drain(paths, float(job["drain_s"]), handed=False)
        session_history.save_end(paths, plan, _describe_end(job.get("over")), tell)
        idle.run_hook(plan, str(idle.get_planned(plan)["hook"]), tell)
        if unmarked:
            raise unmarked
    except (HostError, OSError):
        try:
            stop_state.clear(paths, rest=False)
        finally:
            draining.set_state(paths, draining.READY)
        raise
    return _run_stop(paths, plan, job, tell)


def _put_engines_to_sleep(
    paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell
) -> str:
    """Have the engines sleep in place of ending them; where one cannot, serve again."""
    if job.get("over"):
        return _put_to_sleep(paths, plan, job, tell)
    stop_state.write(paths, _build_sleep_state(plan, job))
    try:
        draining.drain(paths, float(job["drain_s"]), handed=False)
        starts.record_start(paths, plan)
        held = engine_sleep.put_to_sleep(paths, plan, tell)
        stop_state.write(paths, {**stop_state.read(paths), engine_sleep.HELD: held})
    except (HostError, OSError):
        stop_state.clear(paths, rest=False)
        raise
    return "asleep: the weights are in host memory"


_RESTS = {
    idle.STOP: _put_to_sleep,
    idle.SLEEP: _put_engines_to_sleep,
    idle.POWEROFF: _power_off,
    idle.HOOK: _run_hook,
}


# --- start -------------------------------------------------------------------------------------


def start(paths: Paths, request: Mapping[str, Any]) -> LifecycleAnswer:
    """Start what was stopped; return what it `was`, and what the start will take (`expected`)."""
    plan = read_applied_plan(paths)
    _require_whole_group(plan, request)
    was = stop_state.read(paths)
    states = units.read_states(*list_engine_units(plan))
    limit: LifecycleAnswer = {"timeout_s": plan["timeouts"]["start_s"], "fills": []}
    up_now = all(unit["state"] == "active" for unit in states.values())
    # A rank's own lines say only that it waits for its head.
    waits = (
        not groups.serves_clients(plan)
        and group_state.read(paths.group_run).phase != group_state.SERVING
    )
    if not was and up_now and not waits:
        return {"was": "serving", "expected": None, **limit}
    found = starts.begin(paths, plan, str(request.get("by") or "start"))
    if engine_sleep.is_engine_asleep(was):
        engine_sleep.wake_or_stop(paths, plan, was, partial(print, file=sys.stderr))
    stop_state.clear(paths)
    start_units(paths, plan)
    return {
        "was": was.get("state") or "not serving",
        "since": was.get("since"),
        **found,
        **limit,
        "fills": [
            {"unit": name, "progress": layout.STAGE_PROGRESS}
            for name in starts.list_memory_units(plan)
            if name.endswith(".service")
        ],
    }


def start_units(paths: Paths, plan: MachinePlan) -> None:
    """Start the engines, and before them the units that hold the weights in memory."""
    names = list_engine_units(plan)
    fills = [name for name in starts.list_memory_units(plan) if name.endswith(".service")]
    if fills:
        units.run_systemctl("enable", "--quiet", *fills)
    run("systemctl", "reset-failed", *fills, *names)
    units.run_systemctl("start", "--no-block", *fills, *names)
    draining.set_state(paths, draining.READY)


def record_start(paths: Paths) -> LifecycleAnswer:
    """Store how long the start took, and return it; `start` is null where nothing has started."""
    return {"start": starts.record_start(paths, read_applied_plan(paths))}


# --- restart -----------------------------------------------------------------------------------


def restart(paths: Paths, request: Mapping[str, Any]) -> LifecycleAnswer:
    """Start the unit that restarts the instances one after the other.

    Hosts that serve together stop and start together: nothing is done on them, and they answer
    `together`.
    """
    plan = read_applied_plan(paths)
    _require_whole_group(plan, request)
    if plan.get("group"):
        return {"together": True, "started": False}
    if found := stop_state.read(paths):
        raise HostError(f"it is {stop_state.describe(found)}", status.FIX)
    count = len(plan["instances"])
    limit_s = float(plan["timeouts"]["start_s"])
    drain_s = float(request["drain_s"])
    job = {"job": RESTART, "drain_s": drain_s, "start_s": limit_s}
    return {
        "together": False,
        "instances": count,
        "expected": starts.estimate_start(paths, plan, starts.find_weights_place(plan, {})),
        "timeout_s": count * (limit_s + drain_s + _STOP_LIMIT_S),
        **launch(paths, job),
    }


def _run_restart(paths: Paths, plan: MachinePlan, job: Mapping[str, Any], tell: Tell) -> str:
    began, cut = time.monotonic(), 0
    for instance in plan["instances"]:
        cut += _restart_one(paths, plan, instance, job, tell)
    taken = time.monotonic() - began
    done = {"cut": cut, "seconds": round(taken, 1)}
    files.write_json(str(paths.rest_job), {**job, **done}, durable=False, mode=0o600)
    ended = f"{_format_request_count(cut)} cut" if cut else "no request was cut"
    return f"restarted in {format_duration(taken)}; {ended}"


def _restart_one(
    paths: Paths,
    plan: MachinePlan,
    instance: Mapping[str, Any],
    job: Mapping[str, Any],
    tell: Tell,
) -> int:
    name, own = unit_names.get_engine_unit(instance), [int(instance["index"])]

    def waiting(left: int) -> None:
        tell(f"{name}: {_format_request_count(left)} under way")

    try:
        cut = draining.drain(paths, float(job["drain_s"]), own, waiting)
        first = instance is plan["instances"][0]
        if first:
            starts.record_start(paths, plan)
            starts.begin(paths, plan, RESTART)
        tell(f"{name} restarts")
        run("systemctl", "reset-failed", name)
        units.run_systemctl("restart", "--no-block", name)
        until = time.monotonic() + float(job["start_s"])
        wait_for_units([name], until, partial(_report_loading, tell, name))
        if first:
            starts.record_start(paths, plan)
    finally:
        # HAProxy's own checks exclude an instance that does not answer.
        draining.set_state(paths, draining.READY, own)
    wait_for_balance(paths, own, until)
    return cut


def _report_loading(tell: Tell, name: str, line: str) -> None:
    tell(f"{name} is loading: {line}")


def wait_for_units(
    names: Sequence[str],
    until: float,
    tell: Tell,
    wanted: Callable[[], None] = lambda: None,
    *,
    together: bool = False,
) -> None:
    """Wait until units have started: until their engines answered. Raises HostError.

    `wanted` raises where the start is no longer requested. `together`: hosts of a group start again
    until all are there, which is no failure.
    """
    shown = units.read_states(*names)
    before = {} if together else smoke_test.count_restarts(shown)
    told, since_s = "", time.time() - _BEGUN_S
    while True:
        apply_lock.renew()
        wanted()
        shown = units.read_states(*names)
        if all(unit["state"] == "active" for unit in shown.values()):
            return
        broken = smoke_test.find_failure(shown, before)
        if broken:
            # Lines of an earlier start do not explain this failure.
            most = units.FAILURE_LINES
            lines = units.read_journal(broken, most, since_s) or units.read_journal(broken, most)
            raise units.make_error(f"{broken} failed", broken, lines)
        recent = units.read_journal(names[0], 5)
        line = units.strip_log_prefix(recent[-1]) if recent else "no line in the journal yet"
        if time.monotonic() >= until:
            raise HostError(
                f"{names[0]} did not start in time; its last line: {line}",
                "raise kimi_start_timeout_s if it is still loading, or read its journal",
            )
        if line != told:
            tell(line)
            told = line
        time.sleep(_POLL_INTERVAL_S)


def wait_for_fill(plan: MachinePlan, tell: Tell) -> None:
    """Wait until the RAM disk, if there is one, holds the weights. Raises HostError on failure."""
    fills = [name for name in starts.list_memory_units(plan) if name.endswith(".service")]
    while fills:
        shown = units.read_states(*fills)
        if any(row["state"] == "failed" for row in shown.values()):
            raise units.make_error(f"{fills[0]} failed", fills[0], units.read_journal(fills[0]))
        if all(row["state"] == "active" for row in shown.values()):
            return
        done = files.read_json(layout.STAGE_PROGRESS)
        tell(f"filling the RAM disk: {done.get('line') or 'it starts'}")
        time.sleep(_POLL_INTERVAL_S)


def wait_for_balance(paths: Paths, own: Sequence[int] | None, until: float) -> None:
    """Wait until the proxy sends requests to these engines, or to all."""
    while paths.socket.exists() and not draining.is_up(paths, own):
        if time.monotonic() >= until:
            raise HostError(
                "the proxy does not see the engine answer",
                f"journalctl -u {unit_names.PROXY}",
            )
        time.sleep(0.2)


# --- what others ask ---------------------------------------------------------------------------


def read_outcome(paths: Paths) -> LifecycleAnswer:
    """Return the result of the unit's last run: `cut` requests and `seconds`."""
    job = files.read_json(paths.rest_job)
    run("systemctl", "stop", unit_names.REST)
    run("systemctl", "reset-failed", unit_names.REST)
    return {
        "cut": job.get("cut"),
        "seconds": job.get("seconds"),
        "mark": stop_state.read(paths) or None,
    }


def main(argv: list[str]) -> int:
    """Run one of the verbs in the module's docstring."""
    paths = Paths()
    asked = {"stop": stop, "start": start, "restart": restart}
    plain_verbs = {"started": record_start, "outcome": read_outcome}
    verb = argv[0] if len(argv) == 1 else ""
    if verb == "run":
        return _run(paths)
    if verb == "idle":
        # At the level that its unit logs: messages of systemd about its own units stay out of the
        # journal.
        if news := check_idle(paths):
            print(f"<5>{news}", flush=True)
        return 0
    if argv[:1] == ["keep"] and len(argv) <= 2:
        return _save_session(paths, *argv[1:])
    if verb in asked:
        return answer({"ok": True, **asked[verb](paths, json.load(sys.stdin))})
    if verb in plain_verbs:
        return answer({"ok": True, **plain_verbs[verb](paths)})
    raise HostError("usage: rest stop|start|restart|started|outcome|run|idle|keep")


def _save_session(paths: Paths, why: str | None = None) -> int:
    plan = read_applied_plan(paths)
    tell = partial(print, flush=True)
    if why is None:
        session_history.save(paths, plan, tell)
    else:
        session_history.save_end(paths, plan, why, tell)
    return 0


def _run(paths: Paths) -> int:
    jobs = {STOP: _run_stop, RESTART: _run_restart, SLEEP: _run_sleep}
    with Progress(layout.REST_PROGRESS, "rest") as progress:
        tell = partial(progress.say, log=True)
        try:
            job = files.read_json(paths.rest_job)
            progress.done(jobs[str(job.get("job"))](paths, read_applied_plan(paths), job, tell))
        except HostError as error:
            progress.fail(HostError(error.message, error.fix))
            return 1
        except OSError as error:
            progress.fail(HostError.from_system(error))
            return 1
    return 0
