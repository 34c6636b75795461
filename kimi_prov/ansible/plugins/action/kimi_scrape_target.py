"""Action `kimi_scrape_target`: what a host that watches has to know of this one."""

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
short_description: Reads where and how the metrics of this host are read
description:
  - Returns C(target); none in check mode on a machine that shows none yet.
  - It holds the key by which metrics are read, so the task has C(no_log).
options:
  plan:
    type: dict
    required: true
    description: The plan.
"""


def select_trusted(plan: MachinePlan, certificate: str) -> dict[str, str | None]:
    """Return which `certificate` is trusted alone, or null, and a site's own `authorities`.

    One that is ordered by ACME is renewed between two applies, and mostly by another intermediate:
    its authority is trusted. Raises UserError where the site's file cannot be read.
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
