"""Action `kimi_switch`: open a switch from what serves to what is applied, and let it be done."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible import switching
from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import run_sent
from kimi_prov.contract import clean_text, paths, unit_names

_SERVES = {
    "former": "what served before it still serves",
    "new": "what it brought serves",
    "both": "some instances are of the former version and some of the new one",
    "none": "no engine runs",
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state`: begin (before the first file changes), rollback, or start (the unit that switches).

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
        try:
            if state == "start":
                done = run_sent(self, "switch", "start")
                unit = {"unit": unit_names.SWITCH, "progress": paths.SWITCH_PROGRESS}
                return result | unit | {"started": done["started"], "changed": done["started"]}
            done = run_sent(self, "switch", state, stdin=_request(given, task_vars or {}))
        except RemoteError as error:
            return result | failure(error)
        told = [_cut(done["interrupted"])] if done.get("interrupted") else []
        told += [clean_text.block(line) for line in done.get("cut") or ()]
        freed = [str(name) for name in done.get("freed") or ()]
        return result | {
            "opened": done["opened"],
            "changed": bool(freed),
            "changes": [f"{name} is removed" for name in freed],
            "entry": done.get("to"),
            "warnings": told,
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
        "together": bool(plan.get("group")),
    }


def _cut(found: dict[str, Any]) -> str:
    return (
        f"entry {found['entry']} of the history was interrupted ({found['phase']}): "
        f"{_SERVES.get(found['serves'], found['serves'])}; this run takes it over"
    )
