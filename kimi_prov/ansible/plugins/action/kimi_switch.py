"""Action `kimi_switch`: open a switch from what serves to what is applied, and let it be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import switching
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text, groups, paths, unit_names

if TYPE_CHECKING:
    from collections.abc import Mapping

_SERVES = {
    "former": "what served before it still serves",
    "new": "what it brought serves",
    "both": "some instances are of the former version and some of the new one",
    "none": "no engine runs",
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state`: begin (before the first file changes), rollback, or start (the unit that switches).

    Between the last two `together`, with `opened` of rollback by host: whether all hosts that serve
    one model go back, and to the same.

    The code is sent: the machine may have a program of an older version.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `opened` of begin and rollback, `started`, `unit` and `progress` of start."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        given = self._task.args
        state = str(given["state"])
        if self._task.check_mode:
            return result | {"opened": False, "started": False, "msg": "check mode: no switch"}
        if state == "together":
            why = refused(given["opened"], str((task_vars or {}).get("inventory_hostname")))
            return result | (build_failure(*why) if why else {})
        try:
            if state == "start":
                done = call_sent(self, "switch", "start")
                unit = {"unit": unit_names.SWITCH, "progress": paths.SWITCH_PROGRESS}
                return result | unit | {"started": done["started"], "changed": done["started"]}
            done = call_sent(self, "switch", state, stdin=_request(given, task_vars or {}))
        except AnsibleConnectionFailure as error:
            return result | build_unreachable(error)
        except RemoteError as error:
            return result | build_failure(error)
        freed = [str(name) for name in done.get("freed") or ()]
        return result | {
            "opened": done["opened"],
            "changed": bool(freed),
            "changes": [f"{name} is removed" for name in freed],
            "entry": done.get("to"),
            "restores": done.get("restores"),
            "group": done.get("group"),
            "warnings": told(done),
        }


def _request(given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
    wanted = switching.request(variables) | {"drain_s": int(given["drain_s"])}
    if given["state"] == "rollback":
        number = given.get("to")
        return wanted | {"to": None if number in (None, "") else int(number)}
    plan = given["plan"]
    return wanted | {
        "start_s": plan["timeouts"]["start_s"],
        "min_speed": plan["upgrade"]["min_speed"],
        "frees": plan["upgrade"]["frees"],
        "group": groups.list_hosts(plan),
    }


def told(done: Mapping[str, Any]) -> list[str]:
    """Say what a person has to know of how a switch begins; `done`: the machine's answer."""
    freed = ", ".join(str(name) for name in done.get("freed") or ())
    return [
        *([_cut(done["interrupted"])] if done.get("interrupted") else []),
        *(clean_text.clean_block(line) for line in done.get("cut") or ()),
        *(
            [f"no room beside {freed}: removed first, with no way back (upgrade.in_place)"]
            if freed
            else []
        ),
    ]


def refused(opened: Mapping[str, Mapping[str, Any]], host: str) -> tuple[str, str] | None:
    """Say why the hosts of a group do not go back together, and the fix; None where they do.

    `opened`: what `rollback` returned, by host.
    """
    own = opened[host].get("group")
    if not own:
        return None
    others = {name: (opened.get(name) or {}).get("group") for name in own["hosts"]}
    away = [name for name, group in others.items() if not group]
    if away:
        why = f"{', '.join(away)} would not go back: left out by --limit, not reached, or refused"
        fix = "run the command for all hosts of the group, when all of them answer"
        return f"{why}; {host} serves together with it, and nothing was changed", fix
    if any(group != own for group in others.values()):
        rows = ", ".join(f"{name} to entry {opened[name]['restores']}" for name in own["hosts"])
        why = f"they would go back to different versions ({rows}); nothing was changed"
        return why, (
            "see which entries there are of one time: `kimi-prov history INVENTORY`; else put the "
            "former settings into the inventory and run `kimi-prov apply`"
        )
    return None


def _cut(found: dict[str, Any]) -> str:
    return (
        f"entry {found['entry']} of the history was interrupted ({found['phase']}): "
        f"{_SERVES.get(found['serves'], found['serves'])}; this run takes it over"
    )
