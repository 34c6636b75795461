"""The switch from what serves to what was applied, and the rollback.

    switch begin < REQUEST      before the first file changes: record what serves, open the switch
    switch rollback < REQUEST   the same, for a rollback to an entry of the history
    switch start                start kimi-switch.service
    switch run                  that unit's work: drain, stop, start, verify and measure
    switch boot                 kimi-return.service: restore what served, where a switch was cut
    switch check < REQUEST      whether a boot did that in the middle of this run
    switch end < REQUEST        after an apply: roll back where it failed, else record it

An open switch is a file, `/var/lib/kimi/state/switch.json`: written before the first file changes,
removed after the verdict. While it exists, what served can be restored: by the unit itself, by the
end of a failed apply, by the next boot, or by the next apply.

Decides: when a machine goes back to what served before.
Applied by: roles/switch.
Held by: tests/component/on_host/history/test_switch.py,
  tests/component/on_host/history/test_entries.py, tests/lab/test_upgrade.py,
  tests/lab/test_upgrade_verdicts.py, tests/lab/test_upgrade_harms.py.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups
from kimi_prov.contract import paths as layout
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.history import (
    close_switch,
    engines,
    entries,
    group_switch,
    open_switch,
    rollback,
    speed,
    start_switch,
    unit,
)
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan

# Tries of the speed test for a new engine that seems too slow: clients come back at that moment.
_TRIES, _BETWEEN_TRIES_S = 3, 20.0


def run_switch(paths: Paths, tell: engines.Tell) -> str:
    """Do the open switch; return how it ended in one sentence. Raises HostError after a rollback.

    A switch that was interrupted is rolled back.
    """
    state = open_switch.read(paths)
    if not state:
        return "nothing was to be switched"
    try:
        if state["phase"] != open_switch.WRITING:
            return rollback.go_back(paths, state, state.get("why") or "the switch was cut", tell)
        state = {**state, "phase": open_switch.SWITCHING}
        open_switch.write(paths, state)
        try:
            ended, refused = _go_forward(paths, state, tell)
        # Any error: without this nothing would start what served.
        except Exception as error:  # noqa: BLE001
            return rollback.go_back(paths, state, rollback.wrap_error(error).message, tell)
        if refused:
            raise HostError(f"{ended}, but {refused}", group_switch.STAYS)
        return ended
    finally:
        # An engine that answers late is served: HAProxy's own checks exclude one that does not
        # answer.
        engines.set_proxy_state(paths, "ready")


def _go_forward(paths: Paths, state: dict[str, Any], tell: engines.Tell) -> tuple[str, str | None]:
    """Return how it ended, and what verify refused of a group, which stays nevertheless."""
    former = entries.read(paths, int(state["from"]))
    old = entries.read_plan(paths, former)
    before = None
    since = None
    restarts = state["kind"] == entries.ROLLBACK or engines.needs_restart(paths)
    if restarts:
        tell("measuring what serves")
        before = speed.measure(paths, old)
        # Stored at once: the rollback reports it too.
        entries.amend(paths, int(state["to"]), speed_before=before)
        tell("waiting for the requests under way")
        since = time.monotonic()
        engines.drain(paths, state["drain_s"])
        if not groups.serves_clients(old):
            group_switch.wait_for_head(paths, state["drain_s"])
        tell("stopping the engine and starting the new one")
        if state["kind"] == entries.ROLLBACK:
            rollback.restore(paths, entries.read(paths, int(state["restores"])))
        else:
            engines.start_planned(paths)
    plan = plans.read_machine_plan(paths.plan)
    engines.wait_for_token(paths, state["start_s"], group_switch.Apart(paths, plan).watch(tell))
    away = None if since is None else round(time.monotonic() - since, 1)
    after, rows, refused = None, None, None
    if restarts and plan.get("group"):
        after, rows, refused = group_switch.verify_and_measure(paths, plan, tell)
    elif restarts:
        tell("verifying")
        rows = engines.verify(paths, plan)
        tell("measuring what serves now")
        after, slow = _measure(paths, plan, before, state.get("min_speed"))
        if slow:
            raise HostError(slow)
    entry = entries.capture_files(paths, entries.read(paths, int(state["to"])))
    ended = open_switch.end_entry(
        paths,
        entry,
        entries.DONE,
        speed=after,
        seconds_without_service=away,
        checks=rows,
    )
    open_switch.close(paths)
    told = f"{entries.describe_entry(ended)} serves"
    if restarts:
        told += (
            f", {speed.describe_both(before, after)}; {format_duration(away or 0)} without service"
        )
    return told, refused


def _measure(
    paths: Paths, plan: MachinePlan, before: Mapping[str, Any] | None, least: float | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Measure what serves now, and say whether it is too slow; a busy engine gets more tries."""
    after, slow = None, None
    for number in range(_TRIES):
        time.sleep(_BETWEEN_TRIES_S if number else 0)
        after = speed.measure(paths, plan)
        slow = speed.explain_too_slow(before, after, least)
        if not slow:
            break
    return after, slow


def main(argv: list[str]) -> int:
    """Run one of the verbs in the module's docstring."""
    paths = Paths()
    verbs = {
        "begin": start_switch.start,
        "rollback": start_switch.start_rollback,
        "end": close_switch.close,
        "check": rollback.require_no_boot,
    }
    if argv[:1] == ["run"]:
        return _run(paths)
    if argv[:1] == ["boot"]:
        print(rollback.restore_at_boot(paths), flush=True)
        return 0
    if argv[:1] == ["start"]:
        return answer({"ok": True, **unit.start_unit(paths)})
    if len(argv) == 1 and argv[0] in verbs:
        return answer({"ok": True, **verbs[argv[0]](paths, json.load(sys.stdin))})
    raise HostError("usage: switch begin|rollback|start|run|boot|check|end")


def _run(paths: Paths) -> int:
    with Progress(layout.SWITCH_PROGRESS, "switch") as progress:
        try:
            progress.done(run_switch(paths, partial(progress.say, log=True)))
        except rollback.StuckError as error:
            progress.fail(HostError(error.message, error.fix))
            return unit.AGAIN
        except OSError as error:
            # A full disk: how it ended cannot be written.
            progress.fail(HostError.from_system(error))
            return unit.AGAIN
        except HostError as error:
            progress.fail(HostError(error.message, error.fix))
            return unit.WENT_BACK
    return 0
