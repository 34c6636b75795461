"""Action `kimi_proxy`: install the proxy's certificate and keys, and run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import api_keys, metrics_key
from kimi_prov.ansible.control_files import read_control_file
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call
from kimi_prov.contract import groups
from kimi_prov.contract.gateways import is_gateway
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import Plan

DOCUMENTATION = """
module: kimi_proxy
short_description: Converges the proxy's certificate and keys, or its unit
options:
  state:
    type: str
    choices: [present, running, absent]
    default: present
    description: Certificate and keys exist, the proxy also runs, or all of it is removed.
  plan:
    type: dict
    description: The plan, for C(present).
"""


def build_settings(plan: Plan, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read the control files that the plan names; keys become hashes here.

    `known`: the variables of all hosts. Gateways and the hosts behind them take from them the
    certificates that they pin of each other.
    """
    tls = plan["proxy"]["tls"]
    certificate: dict[str, Any] = {"mode": tls["mode"], "names": tls["names"]}
    if tls["mode"] == "files":
        for key, path in (("cert", tls["cert_file"]), ("key", tls["key_file"])):
            option = f"kimi_tls_{key}_file"
            certificate[f"{key}_pem"] = read_control_file(path or "", option, "a PEM file")
    file = plan["control"]["api_keys_file"]
    keys = api_keys.load_keys(Path(file)) if file else {}
    page = plan["web"]
    if page and page["key_name"] in keys:
        raise UserError(
            f"{file}: the name {page['key_name']} is the web UI's own (kimi_web_ui)",
            fix="give that key another name",
        )
    return {
        "tls": certificate,
        "api_keys": keys if groups.serves_clients(plan) else None,
        "page": page is not None,
        "metrics": metrics_key.make_settings(plan),
        **_collect_pins(plan, known or {}),
    }


def _collect_pins(plan: Plan, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known pins: of the gateways before a host, or of the hosts behind a gateway."""

    def find_pins(host: str) -> Mapping[str, Any]:
        return ((known.get(host) or {}).get("__gateway_pins") or {}).get("answer") or {}

    if is_gateway(plan):
        page, own = plan["gateway"].get("page"), plan["web"]
        rows = plan["gateway"]["hosts"]
        hosts = {row["server"]: find_pins(row["host"]).get("certificate") for row in rows}
        if page:
            first = page["first"]
            hosts[first["server"]] = find_pins(first["host"]).get("page_certificate")
        return {
            "hosts": hosts,
            "shares_page": bool(own and own.get("gateways")),
            "paired": bool(plan["gateway"]["peers"]),
        }
    before = plan.get("gateways") or ()
    hashes = {row["key_name"]: find_pins(row["host"]).get("key_sha256") for row in before}
    return {"gateways": hashes}


class ActionModule(HostAction):
    """Sends certificate and hashes over standard input; nothing secret is in the result."""

    ERROR_IN_CHECK_MODE = "change"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Converge, and report the names of what changed."""
        if args["state"] != "present":
            verb = "run" if args["state"] == "running" else "remove"
            answer = call(self, *self.add_check("proxy-ensure", verb))
            return {"changed": answer["changed"], "did": answer["did"]}
        settings = build_settings(args["plan"], self.variables.get("hostvars"))
        answer = call(self, *self.add_check("proxy-ensure"), stdin=settings, secret=True)
        keys = answer["keys"]
        result = {
            "changed": answer["changed"],
            "key_names": keys["names"],
            "converged": answer.get("converged", False),
        }
        warning = (answer.get("certificate") or {}).get("warning")
        if warning:
            result["warnings"] = [warning]
        if keys["created"] or keys["removed"]:
            result["msg"] = f"keys created: {keys['created']}, keys removed: {keys['removed']}"
        return result
