"""What a machine that is paid for by the hour has cost: this session, and those before it.

A session lasts from a boot until the machine is off; on a cloud's machine it begins with the first
boot. Each run of kimi-idle.timer adds the time since the last run to the phase of the machine:
starting, serving, or idle.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kimi_prov.contract.errors import describe_error
from kimi_prov.on_host.endpoint import stop_log
from kimi_prov.on_host.lifecycle import idle
from kimi_prov.on_host.system import boot, files, kept_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.status.lifecycle import (
        PaidStatus,
        SessionBefore,
        SessionCosts,
    )
    from kimi_prov.contract.paths import Paths

SCHEMA = "kimi-prov/session-ledger/v1"
STARTING, SERVING, IDLE = "starting", "serving", "idle"
PHASES = (STARTING, SERVING, IDLE)
#: When kimi-up.service of a cloud's machine began, in seconds since 1970.
_BEGAN = "/var/lib/kimi-up/began"
_MAX_SESSIONS = 100
_WARN_SHARE = 0.8
_RESTS = "it is already asleep or stopped"


class Counted(NamedTuple):
    """The result of one run: a line for the journal, empty for nothing new, and whether it ends."""

    news: str
    over: bool


def find_phase(found: Mapping[str, Any]) -> str:
    """Name the phase since the last run, from the result of `idle.update_idle_time`."""
    if found["why_not"] == _RESTS:
        return IDLE
    if found["used"] is None:
        return STARTING
    return SERVING if found["since_s"] == found["looked_s"] else IDLE


def count_time(paths: Paths, plan: MachinePlan, found: Mapping[str, Any]) -> Counted:
    """Add the time since the last run, and compare the sum with the budget.

    On a full disk the time since the last run that was stored counts for the present phase; that is
    reported once.
    """
    paid = plan["rest"].get("paid")
    if not paid:
        return Counted("", over=False)
    ledger = _extend_to_now(paths, find_phase(found))
    spent, budget = compute_cost(ledger, paid["usd_hour"]), paid["budget_usd"]
    before, news, over = found.get("unkept") or {}, "", False
    if budget is not None:
        over = spent >= budget
        reached = "over" if over else "near" if spent >= _WARN_SHARE * budget else ""
        if reached and reached != before.get("told", ledger.get("told")):
            news = f"this session has cost ${spent:.2f} of a budget of ${budget:.2f}"
        ledger["told"] = reached
    unkept = {}
    try:
        _save(paths, ledger)
    except OSError as error:
        problem = f"the cost of this session is not stored: {describe_error(error)}"
        if problem != before.get("problem"):
            news = "; ".join(part for part in (news, problem) if part)
        unkept = {"problem": problem, "told": ledger.get("told")}
    if unkept != before:
        idle.remember_unsaved(paths, unkept)
    return Counted(news, over)


def settle_time(paths: Paths, plan: MachinePlan) -> None:
    """Add the time since the last run to its phase; report whether the session ends."""
    if plan["rest"].get("paid"):
        session = _read(paths)["session"] or {}
        _save(paths, _extend_to_now(paths, str(session.get("doing") or STARTING)))


def compute_cost(session: Mapping[str, Any], usd_hour: float, name: str | None = None) -> float:
    """Return the dollars of a session, or of one phase of it."""
    seconds = session["seconds"]
    return float((seconds[name] if name else sum(seconds.values())) / 3600 * usd_hour)


def describe_sessions(paths: Paths, plan: MachinePlan) -> PaidStatus | None:
    """Return the cost of this session and those before it; None where no price is set."""
    paid = (plan.get("rest") or {}).get("paid")
    if not paid:
        return None
    ledger = _read(paths)
    usd = paid["usd_hour"]
    session = ledger.get("session") or _begin_session(paths, ledger)
    return {
        "usd_hour": usd,
        "budget_usd": paid["budget_usd"],
        "session": {
            **_build_session(session, usd),
            "starting_usd": round(compute_cost(session, usd, "starting"), 2),
            "serving_usd": round(compute_cost(session, usd, "serving"), 2),
            "idle_usd": round(compute_cost(session, usd, "idle"), 2),
        },
        "before": [cast("SessionBefore", _build_session(row, usd)) for row in ledger["before"]],
    }


def describe_cost(paths: Paths, plan: MachinePlan) -> str:
    """Describe the cost of the session; empty where no price is set."""
    found = describe_sessions(paths, plan)
    if found is None:
        return ""
    row = found["session"]
    return (
        f"this session cost ${row['usd']:.2f} in {row['hours']:g} h: ${row['starting_usd']:.2f} of "
        f"starts, ${row['serving_usd']:.2f} of answers, ${row['idle_usd']:.2f} of idling"
    )


def _build_session(session: Mapping[str, Any], usd_hour: float) -> SessionCosts:
    return {
        "since": session["since"],
        "until": session.get("until"),
        "hours": round(sum(session["seconds"].values()) / 3600, 2),
        "usd": round(compute_cost(session, usd_hour), 2),
    }


def _extend_to_now(paths: Paths, doing: str) -> dict[str, Any]:
    """Return the session with the time since the last look added to a phase."""
    ledger = _read(paths)
    session = ledger.get("session")
    if session is None or session.get("boot") != stop_log.read_boot():
        session = _begin_session(paths, ledger)
    now = time.clock_gettime(stop_log.CLOCK)
    session["doing"] = doing
    session["seconds"][doing] += max(0.0, now - float(session["looked_boot_s"]))
    session["looked_boot_s"] = now
    session["until"] = _format_day(time.time())
    return dict(session)


def _begin_session(paths: Paths, ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a session with this boot; on a cloud's machine it began before the driver's reboot."""
    booted = boot.find_boot_time()
    began = booted
    if not ledger.get("session"):
        text = files.read_text(paths.locate(_BEGAN)).strip()
        began = min(booted, float(text)) if text.isdigit() else booted
    now = time.clock_gettime(stop_log.CLOCK)
    # Before the first run nothing was answered.
    start = max(0.0, time.time() - began)
    return {
        "boot": stop_log.read_boot(),
        "since": _format_day(began),
        "until": _format_day(time.time()),
        "looked_boot_s": now,
        "seconds": {STARTING: start, SERVING: 0.0, IDLE: 0.0},
    }


def _read(paths: Paths) -> dict[str, Any]:
    found = kept_state.read_log(paths.sessions)
    session, before = found.get("session"), found.get("before")
    return {
        "session": session if isinstance(session, dict) and "seconds" in session else None,
        "before": before if isinstance(before, list) else [],
    }


def _save(paths: Paths, session: Mapping[str, Any]) -> None:
    found = _read(paths)
    last, before = found["session"], found["before"]
    if last is not None and last.get("boot") != session["boot"]:
        before = [*before, {key: last.get(key) for key in ("since", "until", "seconds")}][
            -_MAX_SESSIONS:
        ]
    files.make_directory(paths.state, 0o700)
    document = {"schema": SCHEMA, "session": dict(session), "before": before}
    files.write_json(str(paths.sessions), document, mode=0o600)


def _format_day(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
