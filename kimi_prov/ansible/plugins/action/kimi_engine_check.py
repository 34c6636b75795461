"""Action `kimi_engine_check`: the engine's own parser has to accept the plan's command lines."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.planner.findings import make_finding

_FIX = "change kimi_engine_args (or kimi_engine_version) in the inventory, then apply again"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Asks before any unit is written, so that what runs now goes on when it refuses."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Let every instance of `plan` be parsed by the engine in `plan.engine.env_dir`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        plan = self._task.args["plan"]
        question = {
            "env_dir": plan["engine"]["env_dir"],
            "gpus": any(instance["gpus"] for instance in plan["instances"]),
            "instances": [{"argv": i["argv"], "env": i["env"]} for i in _instances(plan)],
        }
        check = bool(self._task.check_mode)
        try:
            call(self, "engine-check", *(["--check"] if check else []), stdin=question)
        except RemoteError as error:
            if check:
                return result | {"changed": False, "skipped": True, "msg": error.line}
            return result | _refused(plan["engine"], error)
        return result | {"changed": False}


def _instances(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return those that run, and those stood in for where this parser is of their version."""
    replaced = plan.get("stand_in")
    if not replaced:
        return list(plan["instances"])
    own, other = plan["engine"], replaced["engine"]
    if (own["name"], own["version"]) != (other["name"], other["version"]):
        return list(plan["instances"])
    python = plan["instances"][0]["argv"][0]
    judged = [{**row, "argv": [python, *row["argv"][1:]]} for row in replaced["instances"]]
    return [*plan["instances"], *judged]


def _refused(engine: dict[str, Any], error: RemoteError) -> dict[str, Any]:
    finding = make_finding(
        "engine.command_line",
        names={key: engine[key] for key in ("name", "version", "variant")},
        observed=error.message,
        required="flags of that version",
        fix=error.fix or _FIX,
    )
    message = f"{finding['title']}: {error.message}"
    return build_failure(message, finding["fix"], "blockers", [finding])
