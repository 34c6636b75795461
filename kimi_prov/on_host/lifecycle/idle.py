"""Measures how long no client has asked, and puts the machine to sleep after the limit.

`kimi-idle.timer` runs it every few seconds. The proxy knows the use: each question to the model
that its key may ask changes a variable in it, and answers under way count as use for as long as
they last. The machine's own requests with verify's key, refused callers, lists of models and health
checks change nothing. Times are those of the monotonic clock, so setting the clock changes nothing.

Decides: when a machine is idle, and who wakes it (the idle timer).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any, Callable

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.contract.durations import describe_duration
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.endpoint import draining, haproxy, stop_state
from kimi_prov.on_host.system import apply_lock, files, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.lifecycle import IdlePlan
    from kimi_prov.contract.paths import Paths

# Variables of the proxy's process: the last request of a client, and of verify.
USED, OWN = "proc.used", "proc.own"
STOP, SLEEP, POWEROFF, HOOK = "stop", "sleep", "poweroff", "hook"
HOOK_SCHEMA = "kimi-prov/idle-hook/v1"
# A verify run sends one request after the other, with less than this between two.
_VERIFY_S = 120.0
_TRIES = 3
_BETWEEN_TRIES_S = 300.0
_HOOK_LIMIT_S = 600.0
_LAST_BYTES = 4096
_BUSY_UNITS = (
    unit_names.SWITCH,
    unit_names.REST,
    unit_names.BENCH,
    unit_names.UPDATE,
    unit_names.DRIVER,
    unit_names.INSTALL,
    unit_names.TUNE,
)


def get_planned(plan: MachinePlan) -> IdlePlan:
    """Return when the machine rests. Raises HostError where it never does."""
    planned = plan["rest"]["idle"]
    if planned is None:
        raise HostError("the machine is to serve at all times", "set kimi_idle_stop")
    return planned


def update_idle_time(paths: Paths, plan: MachinePlan) -> tuple[dict[str, Any], str]:
    """Update the count; return the new state and a line for the journal, empty for nothing new.

    `asleep_in_s` is 0 where the machine may sleep now, and null while something else is under way.
    """
    idle = get_planned(plan)
    before = files.read_json(paths.idle)
    now = time.monotonic()
    # After a boot the monotonic clock starts at 0, and so does the count.
    before = before if float(before.get("looked_s") or 0) <= now else {}
    why = _explain_pause(paths, plan)
    used = own = None
    if why is None:
        used = haproxy.read_variable(paths.socket, USED)
        own = haproxy.read_variable(paths.socket, OWN)
        if haproxy.count_questions(paths.socket):
            used = f"{used} until {now}"
        if haproxy.count_questions(paths.socket, haproxy.OF_VERIFY):
            own = f"{own} until {now}"
    same = why is None and before.get("used") == used
    since = float(before["since_s"]) if same else now
    own_s = float(before.get("own_s") or 0) if before.get("own") == own else now
    tries = int(before.get("tries") or 0) if same else 0
    left = max(0.0, float(idle["after_s"]) - (now - since))
    left = max(left, float(before.get("not_before_s") or 0) - now if same else 0.0)
    if tries >= _TRIES:
        why = f"{idle['action']} failed {tries} times: {before.get('failed')}"
    elif before and not left and now - own_s < _VERIFY_S:
        why = "verify is asking"
    found = {
        "used": used,
        "own": own,
        "own_s": own_s,
        "since_s": since,
        "looked_s": now,
        "asleep_in_s": None if why else round(left),
        "why_not": why,
        "unkept": before.get("unkept"),
        **({key: before.get(key) for key in ("tries", "not_before_s", "failed")} if same else {}),
    }
    files.write_json(str(paths.idle), found, durable=False, mode=0o600)
    return found, _describe_news(before, found, float(idle["after_s"]))


def _explain_pause(paths: Paths, plan: MachinePlan) -> str | None:
    """Say what else is under way, while which nothing is counted; None where nothing is."""
    if stop_state.read(paths):
        return "it is already asleep or stopped"
    if apply_lock.find_holder():
        return "an apply is under way"
    if paths.switch.exists():
        return "a switch is open"
    return _find_running_unit(plan) or _explain_silent_proxy(paths)


def _find_running_unit(plan: MachinePlan) -> str | None:
    shown = units.read_states(*_BUSY_UNITS)
    busy = [name for name, row in shown.items() if row["state"] in ("activating", "deactivating")]
    if busy:
        return f"{busy[0]} is at work"
    engines = units.read_states(*(unit_names.get_engine_unit(row) for row in plan["instances"]))
    up = all(row["state"] == "active" for row in engines.values())
    return None if up else "the engine does not serve yet"


def _explain_silent_proxy(paths: Paths) -> str | None:
    try:
        draining.count_requests(paths)
    except HostError as error:
        return error.message
    return None


def _describe_news(before: Mapping[str, Any], found: Mapping[str, Any], after_s: float) -> str:
    """Announce the sleep when half of the time is over, and five and one minute before it."""
    left, last = found["asleep_in_s"], before.get("asleep_in_s")
    if found["why_not"] and found["why_not"] != before.get("why_not"):
        return str(found["why_not"])
    if left is None or last is None or not left:
        return ""
    crossed = [mark_s for mark_s in (after_s / 2, 300.0, 60.0) if left <= mark_s < last]
    return f"nobody asks: asleep in {describe_duration(left)}" if crossed else ""


def remember_unsaved(paths: Paths, unkept: Mapping[str, Any]) -> None:
    """Keep in memory which announcements were made and not stored, so that none is repeated."""
    document = {**files.read_json(paths.idle), "unkept": unkept}
    files.write_json(str(paths.idle), document, durable=False, mode=0o600)


def record_failure(paths: Paths, plan: MachinePlan, why: str) -> None:
    """Record that a sleep failed: it is tried again some times, then only after the next use.

    Between two tries passes the idle time, and some minutes at most.
    """
    found = files.read_json(paths.idle)
    pause_s = min(_BETWEEN_TRIES_S, float(get_planned(plan)["after_s"]))
    more = {
        "tries": int(found.get("tries") or 0) + 1,
        "not_before_s": time.monotonic() + pause_s,
        "failed": clean_text.clean_line(why),
    }
    files.write_json(str(paths.idle), {**found, **more}, durable=False, mode=0o600)


def run_hook(plan: MachinePlan, program: str, tell: Callable[[str], None]) -> None:
    """Run the operator's program with JSON on its standard input. Raises HostError."""
    question = {
        "schema": HOOK_SCHEMA,
        "event": "idle",
        "host": socket.gethostname(),
        "idle_seconds": get_planned(plan)["after_s"],
        "model": plan["model"]["name"],
    }
    tell(f"running {program}")
    # Files instead of pipes: a program that it leaves in the background is not waited for.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps(question).encode() + b"\n")
        given.seek(0)
        try:
            ended = _run_to_end(program, given, said)
        except (OSError, subprocess.TimeoutExpired) as error:
            fix = "correct kimi_idle_hook, or the program"
            raise HostError(f"{program}: {describe_error(error)}", fix) from None
        if ended != 0:
            # The last line of its output is near the end of the file.
            said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = said.read().decode(errors="replace").strip().splitlines()
            last = clean_text.clean_line(lines[-1])[:300] if lines else "it said nothing"
            raise HostError(
                f"{program} ended with {ended}: {last}",
                "run it by hand with the same standard input",
            )


def _run_to_end(program: str, given: IO[bytes], said: IO[bytes]) -> int:
    """Run a program to its end; on a timeout, end it with all that it started."""
    with subprocess.Popen(
        [program],
        stdin=given,
        stdout=said,
        stderr=subprocess.STDOUT,
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            return process.wait(_HOOK_LIMIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
