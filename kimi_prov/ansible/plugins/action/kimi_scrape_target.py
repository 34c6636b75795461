"""Action `kimi_scrape_target`: read how a monitoring host reaches this host's metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import metrics_key
from kimi_prov.ansible.control_files import read_control_file
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ScrapeTargetAnswer
    from kimi_prov.contract.documents.plan import MachinePlan

DOCUMENTATION = """
module: kimi_scrape_target
short_description: Reads the address, certificate and key of this host's metrics
description:
  - Returns C(target); without it in check mode on a machine that has no metrics yet.
  - The target holds the key of the metrics, so the task needs C(no_log).
options:
  plan:
    type: dict
    required: true
    description: The plan.
"""


def select_trusted(plan: MachinePlan, certificate: str) -> dict[str, str | None]:
    """Return the `certificate` that alone is trusted, or null, and a site's `authorities`.

    A certificate from ACME is renewed between two applies, often by another intermediate: its
    authority is trusted instead. Raises UserError where the site's file cannot be read.
    """
    if plan["proxy"]["tls"]["mode"] != "acme":
        return {"certificate": certificate, "authorities": None}
    bundle = plan["site"]["ca_bundle"]
    authorities = read_control_file(bundle, "kimi_ca_bundle", "a PEM file") if bundle else None
    return {"certificate": None, "authorities": authorities}


class ActionModule(HostAction):
    """Changes nothing."""

    ERROR_IN_CHECK_MODE = "skip"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Read certificate and key."""
        plan = args["plan"]
        file = plan["control"].get("metrics_key_file")
        answer: ScrapeTargetAnswer = call(self, "metrics-door", secret=True)
        target = {
            "address": self.address,
            "port": plan["metrics"]["port"],
            "server_name": answer["server_name"],
            **select_trusted(plan, answer["certificate"]),
            "engines": [row["index"] for row in plan["proxy"]["backends"]],
            "key": metrics_key.load_key(Path(file)) if file else answer["key"],
        }
        return {"target": target}
