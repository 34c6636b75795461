"""kimi-switch.service: a transient unit, so that a cut connection does not stop the switch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import open_switch
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import SwitchStartAnswer
    from kimi_prov.contract.paths import Paths


# Exit status of a switch that rolled back, after which it is not started again; and EX_TEMPFAIL
# where the rollback is stuck.
WENT_BACK, AGAIN = 1, 75


def start_unit(paths: Paths) -> SwitchStartAnswer:
    """Start the unit that switches, where a switch is open; one that is at work goes on."""
    if not open_switch.read(paths):
        return {"started": False}
    if open_switch.is_under_way():
        return {"started": True}
    run("systemctl", "stop", unit_names.SWITCH)
    run("systemctl", "reset-failed", unit_names.SWITCH)
    done = run(
        *("systemd-run", "--quiet", "--no-block", f"--unit={unit_names.SWITCH}"),
        "--description=Kimi: switch to what was applied, or back",
        *("--service-type=oneshot", "--remain-after-exit"),
        # It starts engines and waits for them: its parts have their own limits.
        *("--property=TimeoutStartSec=infinity", "--property=KillMode=process"),
        # After a kill it is started again, and rolls back. A rollback that is stuck, for example on
        # a full disk, is tried until it succeeds. A switch that has rolled back has failed, and is
        # not started again.
        *("--property=Restart=on-failure", f"--property=RestartPreventExitStatus={WENT_BACK}"),
        *("--property=RestartSec=5", "--property=StartLimitIntervalSec=0"),
        *(sys.executable, "-I", layout.ZIPAPP, "switch", "run"),
    )
    if done.returncode != 0:
        raise HostError(f"{unit_names.SWITCH} cannot be started: {done.stderr.strip()}")
    return {"started": True}


def forget_unit() -> None:
    """Remove the unit that has switched: its journal and the history stay."""
    state = units.read_states(unit_names.SWITCH).get(unit_names.SWITCH, {})
    if state.get("load_state") == "loaded" and state["state"] in ("active", "failed", "inactive"):
        run("systemctl", "stop", unit_names.SWITCH)
        run("systemctl", "reset-failed", unit_names.SWITCH)
