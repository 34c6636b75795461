"""Which files on the machine nobody can make again, and the way back where one is damaged.

A damaged file of `KEPT` ends the command that reads it (`on_host/system/kept_state.py`). A file of
`REMADE` may count as absent: the next run makes it again. Of `EXISTENCE` only the existence counts.

Decides: what a damaged file of the machine's state does.
Held by: tests/unit/on_host/system/test_kept_state.py, tests/unit/on_host/keys/test_damaged_keys.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from collections.abc import Mapping

_RESTORE = "kimi-prov restore INVENTORY FILE"
_APPLY = "kimi-prov apply INVENTORY"


@dataclass(frozen=True)
class KeptState:
    """A file that nobody can make again.

    `form`: the types of the fields that it must have. `fix`: the way back; `{path}` is the file,
    `{folder}` its folder.
    """

    fix: str
    form: Mapping[str, type] = field(default_factory=dict)
    # At least one of these exists.
    any_of: tuple[str, ...] = ()
    schema: str | None = None


KEY_METADATA = KeptState(
    f"{_RESTORE} brings it back; without a backup: sudo rm {{path}} on this machine, then {_APPLY} "
    "reads the hashes and rules of all keys from keys.map and rules.map (no key is lost; a key "
    "that the inventory no longer names stays until kimi-prov key --remove)",
    {"keys": dict},
    schema="kimi-prov/key-book/v1",
)
HISTORY_ENTRY = KeptState(
    "sudo rm -r {folder} on this machine, then run the command again: the machine cannot go back "
    "to this entry any more",
    {"number": int, "kind": str},
    schema="kimi-prov/history-entry/v1",
)
MONITOR_BEFORE = KeptState(
    f"sudo rm {{path}} on this machine, then {_APPLY}: a later removal of the monitoring leaves "
    "its user",
)

# By its path (contract/paths.py).
KEPT: Mapping[str, KeptState] = {
    paths.KEY_METADATA: KEY_METADATA,
    paths.HISTORY_ENTRY: HISTORY_ENTRY,
    paths.APPLIED: KeptState(
        f"sudo rm {{path}} on this machine, then {_APPLY}: it writes the record again, and no "
        "drift tells what was changed by hand until then",
        schema="kimi-prov/applied/v1",
    ),
    paths.SWITCH: KeptState(
        f"sudo rm {{path}} on this machine, then {_APPLY}: this machine does not go back by itself "
        "to what served before the switch that was under way",
        {"phase": str, "from": int, "to": int},
    ),
    paths.BEFORE: KeptState(
        f"sudo rm {{path}} on this machine, then run the command again: {_APPLY} records the "
        "present state in its place, kimi-prov destroy leaves the users and settings from before",
    ),
    paths.FIREWALL_STATE: KeptState(
        f"remove the rules of kimi-prov from ufw or firewalld by hand (ufw status numbered), sudo "
        f"rm {{path}} on this machine, then {_APPLY}",
        {"rules": list},
    ),
    paths.DRIVER_STATE: KeptState(
        f"sudo rm {{path}} on this machine, then {_APPLY}: it holds the driver's packages again, "
        "and cannot go back to the driver from before",
        any_of=("version", "held", "failed", "previous", "restarted"),
    ),
    paths.WEB_ADMIN_NEW: KeptState(
        f"{_RESTORE} brings it back; without a backup: sudo rm {{path}} on this machine, then "
        f"{_APPLY}: where the web UI has an account already, another administrator gives it a new "
        "password",
        {"email": str, "password": str},
    ),
    paths.MONITOR_BEFORE: MONITOR_BEFORE,
}
# A damaged one counts as a stop: nothing starts, and `start` removes it.
STOPS = (paths.STOPPED,)
# Figures that are only shown: a damaged file is kept beside, and the figures begin anew.
LOGS = (paths.RESTS, paths.SESSIONS, paths.USAGE_DB)
# Only whether they exist counts.
EXISTENCE = (paths.NODE_EXPORTER_STATE,)
# The next apply, timer or start makes them again.
REMADE = (
    *(paths.PLAN, paths.WEIGHTS, paths.STAGE, paths.CONVERT, paths.STOOD_IN_FOR),
    *(paths.ACME_SETTINGS, paths.ACME_STATE, paths.NCCL_STATE, paths.WEB_STATE, paths.WEB_BEFORE),
    *(paths.DRIFT_STATE, paths.METRICS_STATE, paths.WATCHDOG_STATE, paths.STARTS),
    *(paths.FETCH_PROGRESS, paths.STAGE_PROGRESS, paths.CONVERT_PROGRESS, paths.BENCH_PROGRESS),
    paths.TUNE_PROGRESS,
    *(paths.SWITCH_PROGRESS, paths.REST_PROGRESS, paths.SHARE, paths.NEIGHBOUR),
    *(paths.REST_JOB, paths.BEGUN, paths.IDLE, paths.SESSIONS_KEPT),
)
