"""The cost of sessions, stored in the bucket of the weights, where it outlives the machine.

Each session is one object, `kimi-sessions/MACHINE-START.json` of the bucket, which the machine
writes again every few minutes and at the session's end. A failure to write it is reported, and
nothing waits for it longer than its limit.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.endpoint import stop_log, stop_state
from kimi_prov.on_host.lifecycle import savings
from kimi_prov.on_host.system import files, forward_proxy, process
from kimi_prov.on_host.weights.rclone import Access, Bucket, CredentialsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.status.lifecycle import PaidStatus, SessionBefore
    from kimi_prov.contract.paths import Paths

SCHEMA = "kimi-prov/session/v1"
# Seconds between two runs of kimi-idle.timer at which it is stored.
EVERY_S = 600.0
# For a machine that is about to end: Google leaves it 30 s in all.
END_S = 20.0
READ_S = 60.0
_STALL_TIMEOUT_S = 15.0
# Of a listing, only the newest sessions are read.
_MAX_SESSIONS = 500
_MAX_BYTES = 16 << 10
_OBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json")
_UNPLAIN = re.compile(r"[^A-Za-z0-9.-]+")
_DAY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_WORDS = ("machine", "model", "end")
_NUMBERS = ("hours", "usd", *(f"{name}_usd" for name in savings.PHASES), "usd_hour")
_MAX_USD = 1e9

Tell = Callable[[str], None]


# --- keeping -----------------------------------------------------------------------------------


def is_due(paths: Paths, plan: MachinePlan) -> bool:
    """Return whether the record is due to be stored again."""
    if not _find_folder(plan):
        return False
    tried = files.read_json(paths.sessions_kept).get("tried_boot_s")
    return tried is None or time.clock_gettime(stop_log.CLOCK) - float(tried) >= EVERY_S


def start_saving(paths: Paths) -> None:
    """Start a unit of its own that stores the record: kimi-idle.service has no network."""
    _note(paths, {"tried_boot_s": time.clock_gettime(stop_log.CLOCK)})
    process.run(
        *("systemd-run", "--quiet", "--no-block", "--collect", f"--unit={unit_names.SESSIONS}"),
        "--description=Kimi: keep what this session costs in the bucket of the weights",
        *("--service-type=exec", "--property=RuntimeMaxSec=5min"),
        *(sys.executable, "-I", layout.ZIPAPP, "rest", "keep"),
    )


def save(paths: Paths, plan: MachinePlan, tell: Tell) -> None:
    """Store the record of a session that goes on; read earlier ones where none were read yet."""
    before = files.read_json(paths.sessions_kept)
    # A machine that is asleep still costs; the reason why its service ended stays in the record.
    end = before.get("end") if stop_state.read(paths) else None
    if _write(paths, plan, end, READ_S, tell) and "before" not in before:
        try:
            rows = read(_open_bucket(plan))
        except HostError as error:
            tell(f"sessions before this one cannot be read: {error.line}")
        else:
            _note(paths, {"before": rows})


def save_end(paths: Paths, plan: MachinePlan, why: str, tell: Tell) -> None:
    """Store the record of a session that ends now; give up after END_S and never raise."""
    if not _find_folder(plan):
        return
    # A unit that the timer started would write later, and say that the session goes on.
    process.run("systemctl", "stop", unit_names.SESSIONS, timeout=5)
    try:
        savings.settle_time(paths, plan)
        _write(paths, plan, why, END_S, tell)
    except OSError as error:
        tell(f"the cost of this session is not stored: {describe_error(error)}")


def begin_saving_end(paths: Paths, plan: MachinePlan, why: str, tell: Tell) -> Callable[[], None]:
    """Begin `save_end` beside the machine's other work; return a function that waits for it."""
    thread = threading.Thread(target=save_end, args=(paths, plan, why, tell), daemon=True)
    thread.start()
    return thread.join


def _find_folder(plan: MachinePlan) -> str | None:
    """Name the folder; None where no price was set, or where the weights come from no bucket."""
    rest = plan.get("rest")
    paid = rest and rest.get("paid")
    return (paid and paid.get("kept_in")) or None


def _open_bucket(plan: MachinePlan) -> Bucket:
    return Bucket(str(_find_folder(plan)), Access.from_weights(plan["weights"]), _STALL_TIMEOUT_S)


def _write(paths: Paths, plan: MachinePlan, why: str | None, limit_s: float, tell: Tell) -> bool:
    """Write the record and store the result; return a line where the result is new."""
    before = files.read_json(paths.sessions_kept)
    now = time.clock_gettime(stop_log.CLOCK)
    where = str(_find_folder(plan))
    try:
        # This program runs without the unit that sets the site's forward proxy.
        os.environ.update(forward_proxy.read_variables(str(paths.root)))
        row = build_record(paths, plan, why)
        name = _build_object_name(row)
        _open_bucket(plan).write(name, (json.dumps(row, sort_keys=True) + "\n").encode(), limit_s)
    except HostError as error:
        found = _make_unwritable_error(error, where)
        if found.message != before.get("failed"):
            tell(f"the cost of this session is not stored: {found.line}")
        _note(paths, {"tried_boot_s": now, "failed": found.message, "fix": found.fix, "end": why})
        return False
    if before.get("failed") or not before.get("at") or why:
        tell(f"the cost of this session is stored: {where}/{name}")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _note(paths, {"tried_boot_s": now, "failed": None, "fix": None, "at": at, "end": why})
    return True


def _make_unwritable_error(error: HostError, where: str) -> HostError:
    if not isinstance(error, CredentialsError):
        return error
    return HostError(
        error.message,
        f"let the machine's role, or kimi_bucket_credentials_file, write to {where}/: "
        "s3:PutObject, or the role Storage Object User",
    )


def _note(paths: Paths, more: Mapping[str, Any]) -> None:
    found = files.read_json(paths.sessions_kept)
    files.write_json(str(paths.sessions_kept), {**found, **more}, durable=False, mode=0o600)


def _build_object_name(row: Mapping[str, Any]) -> str:
    """Return the object's name, which stays the same as long as the session lasts."""
    return f"{row['machine']}-{re.sub('[-:]', '', str(row['since']))}.json"


def find_machine_name() -> str:
    """Return this machine's name in the history."""
    return _UNPLAIN.sub("-", socket.gethostname()).strip("-.")[:63] or "machine"


def build_record(paths: Paths, plan: MachinePlan, why: str | None) -> dict[str, Any]:
    """Return the record of this session; `why` it ended, None while it goes on."""
    found = savings.describe_sessions(paths, plan)
    if found is None:
        raise HostError("no price is set", "set kimi_hour_usd")
    return {
        "schema": SCHEMA,
        "machine": find_machine_name(),
        "model": plan["model"]["name"],
        **found["session"],
        "usd_hour": found["usd_hour"],
        "budget_usd": found["budget_usd"],
        "end": why,
    }


# --- reading -----------------------------------------------------------------------------------


def read(bucket: Bucket, limit_s: float = READ_S) -> list[dict[str, Any]]:
    """Return the sessions in a bucket, oldest first; of very many only the newest ones.

    Raises HostError; AbsentError where the bucket has no sessions.
    """
    with process.limit_time(limit_s, bucket.name):
        rows = {
            path: row
            for path, row in bucket.objects().items()
            if _OBJECT.fullmatch(path) and row.size <= _MAX_BYTES
        }
        newest = sorted(rows, key=lambda path: rows[path].modified)[-_MAX_SESSIONS:]
        lines = bucket.lines(newest, limit_s) if newest else []
    return sorted(filter(None, map(parse_record, lines)), key=lambda row: str(row["since"]))


def parse_record(text: str) -> dict[str, Any] | None:
    """Parse one record; None for anything else: other writers of the bucket may put anything."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    days = [found.get("since"), found.get("until")]
    numbers = {name: found.get(name) for name in _NUMBERS}
    budget = found.get("budget_usd")
    if not all(isinstance(day, str) and _DAY.fullmatch(day) for day in days):
        return None
    if not all(map(_is_sane, numbers.values())) or not (budget is None or _is_sane(budget)):
        return None
    words = {name: found.get(name) for name in _WORDS}
    return {
        **{
            name: word if word is None else clean_text.clean_line(word)
            for name, word in words.items()
        },
        "since": days[0],
        "until": days[1],
        **numbers,
        "budget_usd": budget,
    }


def _is_sane(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value <= _MAX_USD  # type: ignore[operator,arg-type]


def describe_history(paths: Paths, plan: MachinePlan) -> PaidStatus | None:
    """Return the cost of this session and of earlier ones, also of other machines, and its place.

    None where no price is set.
    """
    found = savings.describe_sessions(paths, plan)
    if found is None:
        return None
    kept = files.read_json(paths.sessions_kept)
    name, since = find_machine_name(), found["session"]["since"]
    own: list[SessionBefore] = [{**row, "machine": name} for row in found["before"]]
    known = {(name, since), *((name, row["since"]) for row in own)}
    others: list[SessionBefore] = [
        {
            "machine": row["machine"],
            "since": row["since"],
            "until": row["until"],
            "hours": row["hours"],
            "usd": row["usd"],
        }
        for row in kept.get("before") or ()
        if (row["machine"], row["since"]) not in known and str(row["until"]) <= since
    ]
    return {
        **found,
        "before": sorted([*own, *others], key=lambda row: str(row["since"])),
        "kept": {
            "in": _find_folder(plan),
            "at": kept.get("at"),
            "failed": kept.get("failed"),
            "fix": kept.get("fix"),
        },
    }
