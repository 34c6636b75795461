"""Action `kimi_verify`: run the acceptance suite against a served model."""

from __future__ import annotations

import socket
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import network, suite
from kimi_prov.ansible.remote import RemoteError, failure, shell, target
from kimi_prov.ansible.send import run_sent
from kimi_prov.contract import clean_text, paths
from kimi_prov.on_host.gateway import checks
from kimi_prov.on_host.gateway.api import Endpoint
from kimi_prov.on_host.gateway.tls import fingerprint


def source_address(address: str, port: int) -> str | None:
    """Return this machine's own address on the way to `address`, None without a route."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _proofs(plan: dict[str, Any], variables: dict[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Return what `kimi_network_proof` brought from each host of the plan's group."""
    known = variables.get("hostvars") or {}
    members = (plan.get("group") or {}).get("members", ())
    proofs = {}
    for name in (member["host"] for member in members):
        registered = known[name].get("verify_network") if name in known else None
        proofs[name] = (registered or {}).get("proof")
    return proofs


class ActionModule(ActionBase):  # type: ignore[misc]
    """Through the port from here when here is allowed, else from the machine itself."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run every check; the result fails when one of them does."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        tries = suite.tries(self._task.args.get("outside") or [])
        try:
            document = self._examine(variables, tries)
        except RemoteError as error:
            why = {"name": "machine", "status": "fail", "detail": error.line, "seconds": 0.0}
            document = suite.document(
                endpoint="",
                seen_from="none",
                why="the machine did not answer",
                checks=[why],
                stand_ins=[],
            )
        # What the served model answered is in it.
        document = clean_text.data(document)
        result |= {"changed": False, "kimi_document": document}
        if not document["ok"]:
            wrong = [
                f"{check['name']}: {check['detail']}"
                for check in document["checks"]
                if check["status"] == "fail"
            ]
            result |= failure("the served model did not pass: " + "; ".join(wrong))
        return result

    def _examine(self, variables: dict[str, Any], tries: list[dict[str, Any]]) -> dict[str, Any]:
        seen = target(self, "runtime")
        plan = seen["plan"]
        if not plan:
            raise RemoteError(f"there is no {paths.PLAN} on it", "run `kimi-prov apply` first")
        proofs = _proofs(plan, variables)
        if plan.get("group") and plan["group"]["rank"]:
            return suite.rank_document(
                plan, seen, network.of_rank(plan, proofs), suite.stand_ins(plan, variables)
            )
        host = str(variables.get("ansible_host") or variables.get("inventory_hostname"))
        local = self._connection.transport == "local"
        port = plan["proxy"]["port"]
        seen_from, why = suite.vantage(
            local=local,
            address=host,
            source=source_address(host, port),
            networks=plan["proxy"]["allowed_networks"],
        )
        if seen_from == "control":
            key = shell(self, f"cat {paths.VERIFY_KEY}", secret=True).strip()
            address = "127.0.0.1" if local else host
            subject = checks.subject_of(plan, address, fingerprint(seen["certificate"]), key)
            found = checks.run(subject)
            endpoint = subject.endpoint.url
        else:
            found = run_sent(self, "smoke-test", "verify")["checks"]
            endpoint = Endpoint(host, port, "").url
        found += [
            suite.placement(plan, seen),
            suite.loopback_only(seen),
            suite.outsiders(tries),
            suite.certificate(seen),
        ]
        if plan.get("group"):
            found.append(network.check(plan, proofs))
        return suite.document(
            endpoint=endpoint,
            seen_from=seen_from,
            why=why,
            checks=found,
            stand_ins=suite.stand_ins(plan, variables),
        )
