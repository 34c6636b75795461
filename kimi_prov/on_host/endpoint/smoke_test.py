"""Requests one token through the opened port until it comes, the engine fails, or time is up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.on_host.system import apply_lock, group_state, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import SmokeTestAnswer
    from kimi_prov.contract.documents.plan import MachinePlan

# systemd ends the rest of a unit whose main process was killed, then waits for RestartSec.
_BEFORE_RESTART = ("stop-sigterm", "stop-sigkill", "final-sigterm", "final-sigkill", "auto-restart")


def find_failure(states: dict[str, dict[str, Any]], restarts: dict[str, int]) -> str:
    """Name the first unit that failed or was restarted since `restarts` was read, if any.

    A unit whose next start is queued has not failed: a unit that was killed before that start is
    `failed` while it waits for the weights.
    """
    for name, unit in states.items():
        ended = unit["state"] == "failed" and not unit.get("queued")
        if unit["load_state"] != "loaded" or ended:
            return name
        if unit["restarts"] > restarts.get(name, unit["restarts"]):
            return name
    return ""


def count_restarts(states: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return how often each unit was restarted, with a restart that is under way.

    systemd counts it only once the pause before it is over: an engine that was killed a moment ago
    is awaited, and has not failed until it ends once more.
    """
    return {
        name: unit["restarts"] + (unit.get("sub_state") in _BEFORE_RESTART)
        for name, unit in states.items()
    }


def make_error(plan: MachinePlan, unit: str, lines: list[str]) -> HostError:
    """Return the error of a unit that failed.

    In a group that is the supervisor's last line, and what the engine on this host wrote itself.
    """
    group = plan.get("group")
    own = [line for line in lines if group and line.startswith(f"group {group['name']}: ")]
    if not own:
        return units.make_error(f"{unit} failed", unit, lines)
    ours = [line for line in lines if line not in own]
    log = f"journalctl -u {unit}"
    if not groups.serves_clients(plan) or not any(units.CAUSE.search(line) for line in ours):
        return HostError(f"{unit} failed: {own[-1]}", f"read its journal: {log}")
    why = units.explain_failure(unit, ours)
    return HostError(
        f"{unit} failed: {own[-1]} ({why.reason})",
        f"{why.fix} (log: {log})" if why.fix else f"read its journal: {log}",
    )


def find_round_failure(paths: Paths, plan: MachinePlan) -> HostError | None:
    """Return why the engine of a group did not start although all of its hosts were there."""
    group = plan.get("group")
    seen = group_state.read(paths.group_run) if group else None
    # Rounds of another plan do not count: its hosts may be about to start.
    if not group or seen is None or not seen.failed or seen.digest != group["digest"]:
        return None
    return HostError(
        f"group {group['name']}: {seen.why}",
        f"read the lines of the engine on that host: `journalctl -u {unit_names.RANK}`, on the "
        f"head `journalctl -u '{unit_names.ALL_SERVE}'`",
    )


def try_once(paths: Paths, plan: MachinePlan) -> str:
    """Request one token; return empty when it came, else the reason."""
    endpoint = api_client.Endpoint(
        "127.0.0.1", plan["proxy"]["port"], tls.compute_fingerprint(read_text(paths.tls_crt)), 60.0
    )
    body = {
        "model": plan["model"]["served_names"][0],
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    try:
        reply = api_client.request_chat(endpoint, read_text(paths.verify_key).strip(), body)
    except api_client.ApiError as error:
        return str(error)
    tokens = (reply.json().get("usage") or {}).get("completion_tokens", 0)
    if reply.status == 200 and tokens >= 1:
        return ""
    detail = (reply.json().get("error") or {}).get("message") or reply.body[:200].decode(
        errors="replace"
    )
    return f"HTTP {reply.status}: {detail}"


def run_smoke_test(paths: Paths, wait_s: float, restarts: dict[str, int]) -> SmokeTestAnswer:
    """Try for `wait_s` seconds; return at once when it answers, raise when a unit failed.

    `restarts` is the count of restarts by unit that the caller saw first; give {} at first. On a
    host of a group that does not serve itself, it answers when the serving host does.
    """
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        raise HostError(*NOT_APPLIED)
    serves = groups.serves_clients(plan)
    names = [unit_names.get_engine_unit(item) for item in plan["instances"]]
    watched = [*names, *([unit_names.PROXY] if serves else [])]
    until = time.monotonic() + wait_s
    while True:
        states = units.read_states(*watched)
        restarts = restarts or count_restarts(states)
        refusal = (
            try_once(paths, plan) if serves else explain_group_wait(paths, plan, states[names[0]])
        )
        if refusal and (error := find_round_failure(paths, plan)):
            raise error
        # Hosts of a group start again until all are there: that is no failure.
        counted = {} if plan.get("group") else restarts
        broken = find_failure(states, counted) if refusal else ""
        report: SmokeTestAnswer = {
            "ok": True,
            "answered": not refusal,
            "refusal": refusal,
            "restarts": restarts,
        }
        if not refusal:
            return report
        if broken:
            raise make_error(plan, broken, units.read_journal(broken, units.FAILURE_LINES))
        if time.monotonic() >= until:
            recent = units.read_journal(watched[0], 5)
            return {
                **report,
                "line": units.strip_log_prefix(recent[-1])
                if recent
                else "no line in the journal yet",
            }
        time.sleep(1)


def explain_group_wait(paths: Paths, plan: MachinePlan, unit: dict[str, Any]) -> str:
    """Return why the head of a group does not answer yet, as its rank knows; empty when it does."""
    seen = group_state.read(paths.group_run)
    if unit["state"] == "active" and seen.phase == group_state.SERVING:
        return ""
    return (
        seen.said or f"{unit_names.RANK} is {unit['state']}; {groups.get_head(plan)} serves for it"
    )


def main(argv: list[str]) -> int:
    """`smoke-test SECONDS [UNIT=RESTARTS ...]` waits for a token."""
    apply_lock.renew()
    seen = {name: int(count) for name, _, count in (word.rpartition("=") for word in argv[1:])}
    return answer(run_smoke_test(Paths(), float(argv[0]) if argv else 0.0, seen))
