"""kimi-switch.service: a unit of the moment, so that a cut connection does not cut the switch."""

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


# Exit status of a switch that went back, after which it is not started again; and of one whose way
# back is stuck: EX_TEMPFAIL.
WENT_BACK, AGAIN = 1, 75


def start_unit(paths: Paths) -> SwitchStartAnswer:
    """Start the unit that switches, where a switch is open."""
    if not open_switch.read(paths):
        return {"started": False}
    run("systemctl", "stop", unit_names.SWITCH)
    run("systemctl", "reset-failed", unit_names.SWITCH)
    done = run(
        *("systemd-run", "--quiet", "--no-block", f"--unit={unit_names.SWITCH}"),
        "--description=Kimi: switch to what was applied, or back",
        *("--service-type=oneshot", "--remain-after-exit"),
        # It starts engines and waits for them: its own parts have their limits.
        *("--property=TimeoutStartSec=infinity", "--property=KillMode=process"),
        # Killed, it goes on: back. A way back that is stuck, on a full disk say, is tried
        # until it is free. One that has gone back has failed, and is done.
        *("--property=Restart=on-failure", f"--property=RestartPreventExitStatus={WENT_BACK}"),
        *("--property=RestartSec=5", "--property=StartLimitIntervalSec=0"),
        *(sys.executable, "-I", layout.ZIPAPP, "switch", "run"),
    )
    if done.returncode != 0:
        raise HostError(f"{unit_names.SWITCH} cannot be started: {done.stderr.strip()}")
    return {"started": True}


def forget_unit() -> None:
    """Take the unit away that has switched: its journal and the history stay."""
    state = units.read_states(unit_names.SWITCH).get(unit_names.SWITCH, {})
    if state.get("load_state") == "loaded" and state["state"] in ("active", "failed", "inactive"):
        run("systemctl", "stop", unit_names.SWITCH)
        run("systemctl", "reset-failed", unit_names.SWITCH)
