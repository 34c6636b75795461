"""Action `kimi_driver`: one step of bringing the NVIDIA driver to the plan."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import restart_consent
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding


class ActionModule(ActionBase):  # type: ignore[misc]
    """`step`: consent and leave (the end of a run whose machine restarts), else a verb of `driver`.

    Sends its own copy of the code: with --tags and in check mode the machine may have an older
    one, which does not know the same steps.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the step; everything in `also` goes along with the plan's `driver`."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        variables = task_vars or {}
        arguments = self._task.args
        wanted: dict[str, Any] = dict(arguments["plan"]["driver"])
        host = str(variables.get("inventory_hostname", "the machine"))
        if arguments["step"] == "leave":
            return result | build_failure(
                f"{host} restarts for NVIDIA's driver {wanted['version']}: this run ends with it",
                "run the same command again after the boot, as kimi-up.service does by itself",
            )
        if arguments["step"] == "consent":
            return result | self._consent(host, wanted, variables)
        question = {**wanted, **(arguments.get("also") or {})}
        words = [arguments["step"], *(["--check"] if self._task.check_mode else [])]
        try:
            told = call_sent(self, "driver", *words, stdin=question)
        except AnsibleConnectionFailure as error:
            return result | build_unreachable(error)
        except RemoteError as error:
            if self._task.check_mode:
                return result | {"msg": error.line}
            return (
                result
                | build_failure(f"{host}: {error.message}", error.fix)
                | {"why": error.message}
            )
        return result | {"changed": bool(told.get("changed"))} | told

    def _consent(
        self, host: str, wanted: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        """Whether the machine may be restarted, and whether it is the one that this runs on."""
        # What does not answer is gone back from, and that takes a restart too.
        if not wanted["restart"] and wanted["action"] != "confirm":
            return {}
        refused = restart_consent.refusal(
            self,
            host,
            variables.get("kimi_facts") or {},
            ("nvidia_driver_reboot_ok", self._task.args.get("reboot_ok")),
            "install the driver and restart it yourself",
            itself=self._task.args.get("reboot_self") is True,
        )
        if refused is None:
            return {"itself": restart_consent.is_control(self, variables.get("kimi_facts") or {})}
        why, fix = refused
        task = "install NVIDIA's driver" if wanted["action"] == "install" else "load the driver"
        finding = make_finding(
            "driver.reboot",
            names={"task": task, "version": wanted["version"]},
            observed=why,
            required="consent to a restart, on a machine other than this one",
            fix=fix,
        )
        message = f"{host} has to restart for NVIDIA's driver {wanted['version']}: {why}"
        return build_failure(message, fix, "blockers", [finding])
