"""Action `kimi_driver`: one step of bringing the NVIDIA driver to the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import restart_consent
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure
from kimi_prov.ansible.send import call_sent
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.ansible.remote import RemoteError
    from kimi_prov.contract.documents.answers import DriverAnswer

DOCUMENTATION = """
module: kimi_driver
short_description: Runs one step of changing the NVIDIA driver
description:
  - Sends its own copy of the code; with C(--tags) and in check mode the machine may have an older
    one, which does not know the same steps.
options:
  step:
    type: str
    required: true
    description:
      - C(consent) checks that the machine may be restarted, C(leave) ends the run of a machine
        that restarts, and any other is a verb of the machine's C(driver).
  plan:
    type: dict
    required: true
    description: The plan, whose C(driver) goes along.
  also:
    type: dict
    default: {}
    description: What goes along with it.
  reboot_ok:
    type: raw
    description: Consent to a restart, which is true and nothing else.
  reboot_self:
    type: raw
    description: Consent to restart the machine that this runs on.
"""


class ActionModule(HostAction):
    """A machine that is lost at a step fails, so that the rescue goes back to the old driver."""

    FAILS_UNREACHABLE = True

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step."""
        driver: dict[str, Any] = dict(args["plan"]["driver"])
        if args["step"] == "leave":
            return build_failure(
                f"{self.host} restarts for NVIDIA's driver {driver['version']}: this run ends "
                "with it",
                "run the same command again after the boot, as kimi-up.service does by itself",
            )
        if args["step"] == "consent":
            return self._check_consent(driver, args)
        answer: DriverAnswer = call_sent(
            self, *self.add_check("driver", args["step"]), stdin={**driver, **args["also"]}
        )
        return {**answer, "changed": bool(answer.get("changed"))}

    def explain(self, error: RemoteError) -> dict[str, Any]:
        """Name the host, and return the reason alone as `why`; check mode only says it."""
        if self.check_mode:
            return {"msg": error.line}
        return build_failure(f"{self.host}: {error.message}", error.fix) | {"why": error.message}

    def _check_consent(self, driver: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the machine may be restarted; `itself`: it is the one that this runs on."""
        # What does not answer is gone back from, and that takes a restart too.
        if not driver["restart"] and driver["action"] != "confirm":
            return {}
        refusal = restart_consent.find_refusal(
            self,
            self.host,
            self.facts,
            ("nvidia_driver_reboot_ok", args["reboot_ok"]),
            "install the driver and restart it yourself",
            itself=args["reboot_self"] is True,
        )
        if refusal is None:
            return {"itself": restart_consent.is_control(self, self.facts)}
        reason, fix = refusal
        task = "install NVIDIA's driver" if driver["action"] == "install" else "load the driver"
        finding = make_finding(
            "driver.reboot",
            names={"task": task, "version": driver["version"]},
            observed=reason,
            required="consent to a restart, on a machine other than this one",
            fix=fix,
        )
        message = f"{self.host} has to restart for NVIDIA's driver {driver['version']}: {reason}"
        return build_failure(message, fix, "blockers", [finding])
