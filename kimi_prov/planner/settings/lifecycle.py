"""Checks that the variables of stopping and idling do not contradict each other.

Decides: when a machine is idle, and who wakes it (its variables).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def check_lifecycle(
    values: Mapping[str, Any], host: str, find: Callable[[str], str | None]
) -> None:
    """Raise UserError, with file and line, for settings that contradict each other."""

    def refuse(name: str, reason: str, fix: str) -> UserError:
        return UserError(f"{find(name) or f'host {host}'}: {name}: {reason}", fix=fix)

    action, hook = values["kimi_idle_action"], values["kimi_idle_hook"]
    if action == "hook" and hook is None:
        raise refuse(
            "kimi_idle_action",
            "hook, and kimi_idle_hook is not set: nothing would be run",
            "name the program on the machine in kimi_idle_hook, or set kimi_idle_action: stop",
        )
    if hook is not None and action != "hook":
        raise refuse(
            "kimi_idle_hook",
            f"kimi_idle_action is {action}: it would not be run",
            "set kimi_idle_action: hook, or remove kimi_idle_hook",
        )
    if values["kimi_budget_usd"] is not None and values["kimi_hour_usd"] is None:
        raise refuse(
            "kimi_budget_usd",
            "kimi_hour_usd is not set: nobody knows what an hour costs",
            "set kimi_hour_usd to the price of an hour, or remove the budget",
        )
    if values["kimi_hosts_per_model"] > 1:
        if values["kimi_idle_stop"] is not None and action != "stop":
            raise refuse(
                "kimi_idle_action",
                f"{action}: of hosts that serve one model together the head alone would do it",
                "set kimi_idle_action: stop, by which all of them give their GPUs back",
            )
        if values["kimi_hour_usd"] is not None:
            raise refuse(
                "kimi_hour_usd",
                "of hosts that serve one model together the head alone counts its hours",
                "remove it",
            )
    if values["kimi_hour_usd"] is not None and values["kimi_idle_stop"] is None:
        raise refuse(
            "kimi_hour_usd",
            "kimi_idle_stop is not set: what counts hours is what counts idling",
            "set kimi_idle_stop: 20m, or remove it",
        )
