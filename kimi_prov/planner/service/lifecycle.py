"""What a machine does while it is stopped on purpose, and when it is idle.

Decides: when a machine is idle, and who wakes it.
Applied by: roles/idle, roles/proxy.
Held by: tests/component/on_host/lifecycle/test_idle.py,
  tests/component/on_host/lifecycle/test_waking.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.addresses import find_sessions_folder
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.service import engine_sleep

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan.estimates import PowerPlan
    from kimi_prov.contract.documents.plan.lifecycle import IdlePlan, IdlePower, RestPlan
    from kimi_prov.planner.decisions import RamDisk
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.hosts.groups import Group
    from kimi_prov.planner.settings.parsing import Settings

# The machine checks for requests four times in its idle time.
_MAX_POLL_INTERVAL_S, _MIN_POLL_INTERVAL_S = 30, 2


def _report_kept_memory(
    settings: Settings, tmpfs: RamDisk, group: Group | None, findings: Findings
) -> None:
    """Report a RAM disk that takes memory while nothing is served."""
    if settings.stopped_memory == "keep" and tmpfs.enabled:
        findings.add(
            "rest.memory",
            observed=f"{format_bytes(tmpfs.size_bytes)} stay taken while the machine is stopped "
            "or asleep",
            required="the inventory's setting (kimi_stopped_memory: keep): a start reads the "
            "weights from memory",
        )
    elif engine_sleep.is_requested(settings) and tmpfs.enabled:
        findings.add(
            "rest.memory",
            observed=f"{format_bytes(tmpfs.size_bytes)} stay taken while the engine sleeps",
            required="nothing: an engine that has to be started reads the weights from memory; "
            "kimi_ram_disk: never leaves that memory free",
        )
    elif group and group.rank and group.head.shared.get("idle_stop") and tmpfs.enabled:
        findings.add(
            "rest.memory",
            observed=f"{format_bytes(tmpfs.size_bytes)} stay taken while {group.head.name}, the "
            f"head of group {group.name}, is asleep",
            required="nothing: the host only waits for its head; kimi-prov stop gives the memory "
            "back",
        )


def make_document(
    settings: Settings,
    tmpfs: RamDisk,
    source: str,
    findings: Findings,
    catalogue: Catalogue,
    power: PowerPlan | None,
    group: Group | None,
) -> RestPlan:
    """Return the plan's `rest`: when it begins, what ends it, what memory holds meanwhile.

    `source`: the weights'; a bucket also keeps the costs of sessions. `power`: the plan's, from
    which `status` computes savings. Times in seconds. A request can only wake a machine that
    stays on and sleeps. In a `group` the head sleeps, and is woken; the other hosts end their
    engines with it, and wait for it.
    """
    _report_kept_memory(settings, tmpfs, group, findings)
    after_s = settings.idle_stop
    idle: IdlePlan | None = None
    if after_s:
        idle = {
            "after_s": after_s,
            "look_s": max(_MIN_POLL_INTERVAL_S, min(_MAX_POLL_INTERVAL_S, after_s // 4)),
            "action": settings.idle_action,
            "hook": settings.idle_hook,
            "poweroff_self": settings.idle_poweroff_self,
        }
    idle_power: IdlePower | None = None
    if power:
        idle_power = {
            "idle_kw": round(power["kw"] * catalogue.prices.assumed("idle_power"), 3),
            "usd_per_kwh": catalogue.prices.assumed("electricity"),
        }
    wakes = bool(idle) and settings.idle_action != "poweroff"
    plan: RestPlan = {
        "memory": settings.stopped_memory,
        "idle": idle,
        "power": idle_power,
        "wake": settings.wake if wakes else "off",
    }
    if settings.hour_usd:
        plan["paid"] = {
            "usd_hour": settings.hour_usd,
            "budget_usd": settings.budget_usd,
            "kept_in": find_sessions_folder(source),
        }
    return plan
