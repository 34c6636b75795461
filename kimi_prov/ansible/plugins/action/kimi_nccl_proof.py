"""Action `kimi_nccl_proof`: all GPUs sum up once, before an engine that needs it is started."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call, failure


class ActionModule(ActionBase):  # type: ignore[misc]
    """Not done in check mode: nothing is installed then that could be tried."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run it with the first instance's environment; `proof` is kept where it succeeds."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"msg": "check mode: not tried"}
        plan = self._task.args["plan"]
        instance = plan["instances"][0]
        question = {
            "python": f"{plan['engine']['env_dir']}/bin/python",
            "ranks": len(instance["gpus"]),
            "env": instance["env"],
            "proof": self._task.args["proof"],
        }
        try:
            call(self, "nccl-proof", stdin=question)
        except RemoteError as error:
            return result | failure(error)
        return result | {"changed": True}
