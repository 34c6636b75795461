"""Decides whether an apply changes what a machine serves, and records who applies it.

Decides: when a machine goes back to what served before (whether an apply switches at all).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from kimi_prov import __version__
from kimi_prov.ansible import apply_lock
from kimi_prov.ansible.send import call_sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible.plugins.action import ActionBase

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan

# Parts of a plan that hold the present state: the machine's plan.json leaves them out.
MOMENTARY = ("findings", "upgrade")


def render_plan(plan: MachinePlan) -> str:
    """Return the text of the machine's plan.json."""
    lasting = {name: value for name, value in plan.items() if name not in MOMENTARY}
    return json.dumps(lasting, indent=4, sort_keys=True) + "\n"


def is_needed(plan: MachinePlan, facts: Facts) -> bool:
    """Whether an apply of the plan changes what serves, so that it needs a switch.

    A switch that is still open was interrupted: this apply takes it over.
    """
    kimi = facts.get("kimi") or {}
    if kimi.get("switch_open") or plan["upgrade"]["frees"]:
        return True
    if not kimi.get("serving"):
        return False
    digest = hashlib.sha256(render_plan(plan).encode()).hexdigest()
    restarts = any(row["id"] == "serve.restart" for row in plan["findings"])
    return restarts or digest != kimi.get("plan_sha256")


def check(action: ActionBase, variables: Mapping[str, Any]) -> None:
    """Raise RemoteError where a boot during this apply went back to what served before.

    The former files are restored then: a run that goes on would mix its own files with them.
    """
    if ((variables.get("kimi_plan") or {}).get("upgrade") or {}).get("switches"):
        call_sent(action, "switch", "check", stdin=build_request(variables))


def build_request(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return who works on the machine, from which inventory and with which version."""
    we = apply_lock.describe_holder()
    sources = variables.get("ansible_inventory_sources") or ()
    return {
        "run": we["run"],
        "by": {"user": we["user"], "control_host": we["control_host"]},
        "inventory": ", ".join(str(source) for source in sources) or None,
        "kimi_prov": __version__,
    }
