"""Action `kimi_driver`: run one step of installing the planned NVIDIA driver."""

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
        that restarts, and any other value is a verb of the machine's subcommand C(driver).
  plan:
    type: dict
    required: true
    description: The plan, whose C(driver) is sent.
  also:
    type: dict
    default: {}
    description: Further values that are sent.
  reboot_ok:
    type: raw
    description: Consent to a restart; only the boolean true counts.
  reboot_self:
    type: raw
    description: Consent to restart the machine that this runs on.
"""


class ActionModule(HostAction):
    """A machine that is lost at a step fails, so that `rescue` restores the old driver."""

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
        """Name the host in the message and return the reason as `why`; check mode only reports."""
        if self.check_mode:
            return {"msg": error.line}
        return build_failure(f"{self.host}: {error.message}", error.fix) | {"why": error.message}

    def _check_consent(self, driver: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the machine may be restarted; `itself`: it is the control machine."""
        # A driver that does not answer is replaced by the old one, which takes a restart too.
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
