"""Action `kimi_serve`: write the engine's units, and let exactly the planned instances run."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import switching
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.ansible.serve_units import Options, render
from kimi_prov.contract import unit_names


class ActionModule(ActionBase):  # type: ignore[misc]
    """Judges by what runs, so that an apply that was cut short is made good by the next."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write, start, restart and remove what `plan` and the role's options ask for.

        The code is sent, for in check mode and with --tags the machine may have an older one.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        options = Options(**{field.name: int(given[field.name]) for field in fields(Options)})
        check = ["--check"] if self._task.check_mode else []
        try:
            if not check:
                switching.check(self, task_vars or {})
            done = call_sent(
                self, "serve-ensure", *check, stdin=asdict(render(given["plan"], options))
            )
        except AnsibleConnectionFailure as error:
            return result | build_unreachable(error)
        except RemoteError as error:
            return result | build_failure(
                error, f"see `systemctl status '{unit_names.ALL_SERVE}'` there"
            )
        written = done.pop("written")
        if self._task.diff:
            result["diff"] = [_diff(row) for row in written]
        changes = _changes(done, [row["path"] for row in written])
        if check and changes:
            result["_ansible_verbose_always"] = True  # for whoever runs plain Ansible
        return result | done | {"written": [row["path"] for row in written], "changes": changes}


def _changes(done: dict[str, Any], written: list[str]) -> list[str]:
    """Say what is changed, and of each restart why."""
    return [
        *[f"{path} is made" for path in done["made"]],
        *[f"{path} changes" for path in written],
        *[f"{unit} starts" for unit in done["started"]],
        *[f"{unit} restarts: {'; '.join(done['reasons'][unit])}" for unit in done["restarted"]],
        *[f"{unit} is removed: it is no longer planned" for unit in done["removed"]],
    ]


def _diff(row: dict[str, str]) -> dict[str, str]:
    return {
        "before": row["before"],
        "after": row["after"],
        "before_header": row["path"],
        "after_header": row["path"],
    }
