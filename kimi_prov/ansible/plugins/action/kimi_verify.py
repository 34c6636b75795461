"""Action `kimi_verify`: run the acceptance suite against a served model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.acceptance import network, suite
from kimi_prov.ansible.remote import RemoteError, build_failure, call, run_shell
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text, paths
from kimi_prov.on_host.acceptance import expectations
from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.acceptance.catalogue import BASIC, LEFT_OUT, Exam, Selection
from kimi_prov.on_host.acceptance.target import Door
from kimi_prov.on_host.acceptance.verdicts import failed, skipped
from kimi_prov.on_host.endpoint import checks
from kimi_prov.on_host.endpoint.tls import compute_fingerprint
from kimi_prov.on_host.lifecycle.status import FIX as START
from kimi_prov.runner import progress

PHASE = "verify"
Row = dict[str, Any]
Tell = Callable[[str], None]
Batch = Callable[[list[str]], list[Row]]


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


def _stand_ins(plan: dict[str, Any], variables: dict[str, Any]) -> list[str]:
    """Name what is not the real thing here and, at a gateway, on the machines behind it."""
    found = suite.stand_ins(plan, variables)
    known = variables.get("hostvars") or {}
    for name in (row["host"] for row in (plan.get("gateway") or {}).get("hosts", ())):
        done = known[name].get("verify_done") if name in known else None
        texts = ((done or {}).get("kimi_document") or {}).get("stand_ins") or ()
        found += [f"behind it: {text}" for text in texts if text not in found]
    return list(dict.fromkeys(found))


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
        if document is None:
            return result | {
                "changed": False,
                "skipped": True,
                "msg": "nothing of it is asked here",
            }
        # What the served model answered is in it.
        document = clean_text.clean_data(document)
        result |= {"changed": False, "kimi_document": document}
        if not document["ok"]:
            wrong = [
                f"{check['name']}: {check['detail']}"
                for check in document["checks"]
                if check["status"] == "fail"
            ]
            result |= build_failure("the served model did not pass: " + "; ".join(wrong))
        return result

    def _examine(
        self, variables: dict[str, Any], tries: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Return the host's document; None for a gateway, of which nothing was chosen."""
        seen = call(self, "runtime")
        plan = seen["plan"]
        if not plan:
            raise RemoteError(f"there is no {paths.PLAN} on it", "run `kimi-prov apply` first")
        if seen.get("rests"):
            # Neither passed nor broken: nothing was asked.
            raise RemoteError(f"the model is {seen['rests']}: it was not asked", START)
        proofs = _proofs(plan, variables)
        chosen = _selection(self._task.args.get("selection") or {})
        if plan.get("group") and plan["group"]["rank"]:
            row = network.of_rank(plan, proofs)
            row = row if chosen.takes(row["name"]) else _left_out(row)
            return suite.rank_document(plan, seen, row, suite.stand_ins(plan, variables))
        host = str(variables.get("ansible_host") or variables.get("inventory_hostname"))
        local = self._connection.transport == "local"
        port = plan["proxy"]["port"]
        seen_from, why = suite.vantage(
            local=local,
            address=host,
            source=source_address(host, port),
            networks=plan["proxy"]["allowed_networks"],
        )
        from_here = seen_from == "control"
        key = run_shell(self, f"cat {paths.VERIFY_KEY}", secret=True).strip() if from_here else ""
        address = "127.0.0.1" if local and from_here else host
        subject = checks.build_subject(plan, address, compute_fingerprint(seen["certificate"]), key)
        if subject.gateway:
            chosen = replace(chosen, suite=BASIC)
            if not any(map(chosen.takes, (*chosen.names(subject), *suite.OF_GATEWAY))):
                return None
        exam = Exam(
            subject,
            expectations.of_plan(plan),
            Door(lambda question: self._suite("ask", question)),
        )
        tell = _teller(str(variables.get("inventory_hostname")))
        batch = self._from_here(exam, tell) if from_here else self._from_there(tell)
        found = acceptance.whole(chosen, exam, batch)
        engine = [suite.placement(plan, seen), suite.loopback_only(seen)]
        own = [
            *([] if subject.gateway else engine),
            suite.outsiders(tries),
            suite.certificate(seen),
        ]
        if plan.get("group"):
            own.append(network.check(plan, proofs))
        found += [row if chosen.takes(row["name"]) else _left_out(row) for row in own]
        return suite.document(
            endpoint=subject.endpoint.url,
            seen_from=seen_from,
            why=why,
            checks=found,
            stand_ins=_stand_ins(plan, variables),
            suite=chosen.suite,
        )

    def _from_here(self, exam: Exam, tell: Tell) -> Batch:
        """Run batches of checks through the port from this machine."""
        return lambda names: acceptance.run(exam, names, tell)

    def _suite(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the suite's part on the machine. Raises RemoteError, also for a lost connection.

        What was found before that is told, so that the host is not given up as unreachable.
        """
        try:
            return call_sent(self, "suite", verb, stdin=request)
        except AnsibleConnectionFailure as error:
            raise RemoteError(f"the connection was lost: {error}") from None

    def _from_there(self, tell: Tell) -> Batch:
        """Have the machine run batches of checks; where it is lost, those are what failed."""

        def batch(names: list[str]) -> list[Row]:
            tell(", ".join(names))
            try:
                rows: list[Row] = self._suite("run", {"names": names})["checks"]
            except RemoteError as error:
                lost = failed("the machine did not answer", "an answer", error.line)
                return [lost.row(name, 0.0) for name in names]
            return rows

        return batch


def _selection(given: Mapping[str, Any]) -> Selection:
    """Read which checks are run, as the command gives them; plain Ansible runs the basic suite."""
    names = {key: tuple(map(str, given.get(key) or ())) for key in ("only", "leave")}
    return Selection(str(given.get("suite") or BASIC), **names)


def _left_out(row: Row) -> Row:
    return skipped(LEFT_OUT).row(row["name"], 0.0)


def _teller(host: str) -> Tell:
    """Return what reports how far the suite is on a host."""

    def tell(line: str) -> None:
        progress.report(Display(), host, {"phase": PHASE, "line": clean_text.clean_line(line)})

    return tell
