"""The steps of a switch: drain, start the planned engines, wait for a token, verify."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import checks, draining, smoke_test, tls
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.system import apply_lock, files, plans, started, units
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths

Tell = Callable[[str], None]
FILLS = (unit_names.STAGE, unit_names.WARM)
_WEIGHTS = (unit_names.FETCH, unit_names.CONVERT, *FILLS)
_POLL_INTERVAL_S = 1.0
# Seconds: a rank gives up last, so that it does not roll back when its head was just answered.
_RANK_LATER_S = 120.0
_SIZE = re.compile(r"^Options=.*\bsize=(\d+)", re.MULTILINE)


def needs_restart(paths: Paths) -> bool:
    """Return whether an engine does not run as planned, or not at all."""
    places = started.UnitPaths(str(paths.root))
    wanted = serve.read_planned(plans.read_machine_plan(paths.plan), places)
    found = serve.ensure(*wanted, places, check=True)
    return bool(found["started"] or found["restarted"] or found["removed"])


def start_planned(paths: Paths) -> None:
    """Run exactly the engines of the present plan; failures of an earlier start do not count."""
    places = started.UnitPaths(str(paths.root))
    names = [
        unit_names.get_engine_unit(row) for row in plans.read_machine_plan(paths.plan)["instances"]
    ]
    for name, state in serve.read_states(names).items():
        # A unit that waits for its restart would start in a while, and look like one more failure.
        if str(state.get("SubState", "")).startswith("auto-restart"):
            units.run_systemctl("stop", name)
            run("systemctl", "reset-failed", name)
    serve.allow_start(places)
    serve.ensure(
        *serve.read_planned(plans.read_machine_plan(paths.plan), places), places, check=False
    )


def drain(paths: Paths, limit_s: float) -> int:
    """Drain the engines and wait for the requests under way; return how many are left.

    HAProxy answers 503 meanwhile. Without HAProxy there is nothing to wait for.
    """
    if not limit_s:
        return 0
    with contextlib.suppress(OSError, HostError):
        return draining.drain(paths, limit_s)
    return 0


def set_proxy_state(paths: Paths, state: str) -> None:
    """Put every engine of the proxy into `drain` or `ready`, where a proxy answers."""
    with contextlib.suppress(OSError, HostError):
        draining.set_state(paths, state)


def wait_for_token(paths: Paths, limit_s: float, tell: Tell) -> None:
    """Wait for a token through the port. Raises HostError where the engine fails or time is up.

    `limit_s` counts from when the weights are in place: filling the RAM disk has its own limit. The
    engines are undrained when they are ready: one that still stops gets no requests.
    """
    plan = plans.read_machine_plan(paths.plan)
    if not groups.serves_clients(plan):
        limit_s += _RANK_LATER_S
    until = time.monotonic() + limit_s
    restarts: dict[str, int] = {}
    names = [unit_names.get_engine_unit(row) for row in plan["instances"]]
    while True:
        apply_lock.renew()
        if any(unit.get("state") == "activating" for unit in units.read_states(*_WEIGHTS).values()):
            until = time.monotonic() + limit_s
        if all(unit["state"] == "active" for unit in units.read_states(*names).values()):
            set_proxy_state(paths, "ready")
        seen = smoke_test.run_smoke_test(paths, _POLL_INTERVAL_S, restarts)
        if seen["answered"]:
            _shrink_ram_disk(paths)
            return
        restarts = seen["restarts"]
        tell(f"the engine is loading: {seen['line']}")
        if time.monotonic() >= until:
            raise HostError(
                f"no token within {format_duration(limit_s)} ({seen['refusal']}); the engine's "
                f"last line: {seen['line']}"
            )


def _shrink_ram_disk(paths: Paths) -> None:
    """Set the RAM disk to the planned size, where its content was too large for that before."""
    found = _SIZE.search(files.read_text(paths.locate(f"{layout.UNITS}/{unit_names.RAM_MOUNT}")))
    place = str(paths.locate(layout.RAM))
    if found is None or not os.path.ismount(place):
        return
    about = os.statvfs(place)
    if about.f_blocks * about.f_frsize > int(found[1]) + about.f_frsize:
        # A RAM disk that is larger than planned works as well.
        run("systemctl", "reload", unit_names.RAM_MOUNT)


def verify(paths: Paths, plan: MachinePlan) -> list[dict[str, Any]]:
    """Run verify's checks through the port. Raises HostError naming those that fail.

    A rank of a group has no port.
    """
    if not groups.serves_clients(plan):
        return []
    subject = checks.build_subject(
        plan,
        "127.0.0.1",
        tls.compute_fingerprint(files.read_text(paths.tls_crt)),
        files.read_text(paths.verify_key).strip(),
    )
    # Without the check of the web UI.
    rows = checks.run_checks(subject, [name for name, _ in checks.THROUGH_PORT])
    wrong = [f"{row['name']}: {row['detail']}" for row in rows if row["status"] == "fail"]
    if wrong:
        raise HostError("it did not pass verify: " + "; ".join(wrong))
    return [{key: row[key] for key in ("name", "status")} for row in rows]
