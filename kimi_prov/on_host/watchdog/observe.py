"""The watchdog's observations: systemd, the proxy, the engine's metrics, its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import haproxy
from kimi_prov.on_host.engine import metrics, ready
from kimi_prov.on_host.system import apply_lock, units
from kimi_prov.on_host.watchdog import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths

# A holder that renews the apply lock less often has gone, or waits for something that needs no
# engine.
_LOCK_FRESH_S = 900.0
# Units that, while they run, change the engines or the machine below them.
_BUSY_UNITS = (
    unit_names.REST,
    unit_names.SWITCH,
    unit_names.BENCH,
    unit_names.UPDATE,
    unit_names.DRIVER,
)
_PROPERTIES = ("ActiveState", "SubState", "InvocationID", "ControlGroup", "Job")
_OUT = "MAINT"
_NO_REQUESTS = ("DRAIN", _OUT)


@dataclass(frozen=True)
class Engine:
    """One instance of the plan: its number, its unit, its port on loopback."""

    index: int
    unit: str
    port: int


@dataclass(frozen=True)
class Machine:
    """The state at one moment: why nothing is decided, units by name, engines at the proxy."""

    held: str
    units: Mapping[str, Mapping[str, str]]
    proxy: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Looked:
    """The state of one engine at that moment, as a sample has it; `text`: its raw metrics.

    `serves`: its unit is active, so this start of it has answered a chat. `out`: the proxy sends it
    no requests, for another reason than a drain.
    """

    start: str
    held: str
    cgroup: str
    serves: bool
    out: bool
    text: str = ""
    steps: dict[str, float] | None = None
    waits: int = 0
    cpu: float = 0.0


def list_engines(plan: MachinePlan) -> list[Engine]:
    """Return the engines of a plan that can be asked: all but the rank of a group."""
    return [
        Engine(row["index"], unit_names.get_engine_unit(row), port)
        for row in plan.get("instances") or ()
        if (port := row.get("port")) is not None
    ]


def observe_machine(paths: Paths, found: list[Engine]) -> Machine:
    """Observe what all engines have in common."""
    names = [engine.unit for engine in found]
    shown = units.read_properties([*names, *_BUSY_UNITS], _PROPERTIES)
    return Machine(_explain_pause(paths, shown), shown, _read_proxy(paths))


def _explain_pause(paths: Paths, shown: Mapping[str, Mapping[str, str]]) -> str:
    """Return why nothing is decided about the engines of this machine now; empty where it is."""
    holder = apply_lock.find_holder(fresh_s=_LOCK_FRESH_S)
    if holder is not None:
        who = clean_text.clean_line(f"{holder.get('user')}@{holder.get('control_host')}")[:80]
        return f"{who} works on this machine, and holds the apply lock"
    for name in _BUSY_UNITS:
        if shown.get(name, {}).get("ActiveState") in ("active", "activating", "deactivating"):
            return f"{name} is at work"
    if paths.stopped.exists():
        return "the machine is stopped or asleep on purpose"
    return ""


def _read_proxy(paths: Paths) -> dict[str, dict[str, Any]]:
    try:
        return {str(row["name"]): dict(row) for row in haproxy.list_servers(paths.socket)}
    except (OSError, HostError, ValueError):
        return {}


def observe_engine(
    found: Engine, around: Machine, timeout_s: float, *, ours: bool = False
) -> Looked:
    """Observe one engine; an engine about which nothing is decided is not asked.

    `ours`: the watchdog itself took this engine out of the balance, so it is observed all the same.
    """
    unit = around.units.get(found.unit, {})
    state = unit.get("ActiveState", "")
    start, cgroup = unit.get("InvocationID", ""), unit.get("ControlGroup", "")
    server = around.proxy.get(f"engine{found.index}", {})
    serves = state == "active" and unit.get("Job", "0") in ("", "0")
    out = server.get("status") == _OUT
    held = around.held
    if not held and not serves:
        held = f"{found.unit} is {state or 'not there'}"
    if not held and server.get("status") in _NO_REQUESTS and not (out and ours):
        held = f"the proxy sends {found.unit} no requests ({server['status']})"
    if held:
        return Looked(start, held, cgroup, serves, out)
    refusal, text = ready.send_request(found.port, "GET", "/metrics", timeout_s=timeout_s)
    told = None if refusal else metrics.parse_state(text)
    running = int(told.running + told.waiting) if told else 0
    return Looked(
        start,
        "",
        cgroup,
        serves,
        out,
        text if not refusal else "",
        metrics.count_steps(text) if told else None,
        # An engine whose worker stood still before a request came reports no waiting request.
        max(running, int(server.get("requests") or 0)),
        processes.sum_cpu_seconds(processes.list_pids(cgroup)),
    )
