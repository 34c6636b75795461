"""Action `kimi_switch`: open and start a switch from what serves to what is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import switching
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text, groups, paths, unit_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import RollbackAnswer

DOCUMENTATION = """
module: kimi_switch
short_description: Opens and starts a switch, or a rollback
description: The code is sent, because the machine may have a program of an older version.
options:
  state:
    type: str
    choices: [begin, rollback, together, start]
    required: true
    description:
      - C(begin), before the first file changes, and C(rollback) return C(opened).
      - C(together), after C(rollback), checks that all hosts that serve one model go back to the
        same version.
      - C(start) starts the unit that switches, and returns C(started), C(unit) and C(progress).
  plan:
    type: dict
    description: The plan, for C(begin).
  drain_s:
    type: int
    description: Seconds for answers that are in progress.
  to:
    type: raw
    description: The entry of the history, for C(rollback); without it the last other version.
  opened:
    type: dict
    description: What C(rollback) returned, by host, for C(together).
"""

_SERVES = {
    "former": "what served before it still serves",
    "new": "what it brought serves",
    "both": "some instances are of the former version and some of the new one",
    "none": "no engine runs",
}


class ActionModule(HostAction):
    """A lost host fails the task, so that its apply is ended."""

    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step."""
        state = args["state"]
        if self.check_mode:
            return {"opened": False, "started": False, "msg": "check mode: no switch"}
        if state == "together":
            refusal = find_refusal(args["opened"], self.host)
            return build_failure(*refusal) if refusal else {}
        if state == "start":
            started = call_sent(self, "switch", "start")["started"]
            unit = {"unit": unit_names.SWITCH, "progress": paths.SWITCH_PROGRESS}
            return {**unit, "started": started, "changed": started}
        answer: RollbackAnswer = call_sent(self, "switch", state, stdin=self._build_request(args))
        freed = [str(name) for name in answer.get("freed") or ()]
        return {
            "opened": answer["opened"],
            "changed": bool(freed),
            "changes": [f"{name} is removed" for name in freed],
            "entry": answer.get("to"),
            "restores": answer.get("restores"),
            "group": answer.get("group"),
            "warnings": list_warnings(answer),
        }

    def _build_request(self, args: Mapping[str, Any]) -> dict[str, Any]:
        request = {**switching.build_request(self.variables), "drain_s": args["drain_s"]}
        if args["state"] == "rollback":
            return {**request, "to": None if args["to"] in (None, "") else int(args["to"])}
        plan = args["plan"]
        return {
            **request,
            "start_s": plan["timeouts"]["start_s"],
            "min_speed": plan["upgrade"]["min_speed"],
            "frees": plan["upgrade"]["frees"],
            "group": groups.list_hosts(plan),
        }


def list_warnings(answer: RollbackAnswer) -> list[str]:
    """Return the warnings about the beginning of a switch."""
    left = answer.get("interrupted")
    warnings = [_describe_interrupted(left)] if left else []
    warnings += [clean_text.clean_block(line) for line in answer.get("cut") or ()]
    freed = ", ".join(str(name) for name in answer.get("freed") or ())
    if freed:
        way = "removed first, with no way back (upgrade.in_place)"
        warnings.append(f"no room beside {freed}: {way}")
    return warnings


def find_refusal(opened: Mapping[str, Mapping[str, Any]], host: str) -> tuple[str, str] | None:
    """Return why the hosts of a group cannot go back together, and the fix; None if they can.

    `opened`: the results of `rollback` by host.
    """
    own = opened[host].get("group")
    if not own:
        return None
    others = {name: (opened.get(name) or {}).get("group") for name in own["hosts"]}
    away = [name for name, group in others.items() if not group]
    if away:
        reason = (
            f"{', '.join(away)} would not go back: left out by --limit, not reached, or refused"
        )
        fix = "run the command for all hosts of the group, when all of them answer"
        return f"{reason}; {host} serves together with it, and nothing was changed", fix
    if any(group != own for group in others.values()):
        rows = ", ".join(f"{name} to entry {opened[name]['restores']}" for name in own["hosts"])
        return f"they would go back to different versions ({rows}); nothing was changed", (
            "see which entries there are of one time: `kimi-prov history INVENTORY`; else put the "
            "former settings into the inventory and run `kimi-prov apply`"
        )
    return None


def _describe_interrupted(entry: Mapping[str, Any]) -> str:
    return (
        f"entry {entry['entry']} of the history was interrupted ({entry['phase']}): "
        f"{_SERVES.get(entry['serves'], entry['serves'])}; this run takes it over"
    )
