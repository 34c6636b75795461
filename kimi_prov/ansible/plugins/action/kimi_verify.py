"""Action `kimi_verify`: run the acceptance suite against a served model."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.acceptance import network, suite
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure, call, run_shell
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text, gateways, groups, paths
from kimi_prov.contract.errors import NOT_APPLIED
from kimi_prov.on_host.acceptance import expectations
from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.acceptance.catalogue import BASIC, LEFT_OUT, Exam, Selection
from kimi_prov.on_host.acceptance.target import MachineTarget
from kimi_prov.on_host.acceptance.verdicts import make_failure, make_skip
from kimi_prov.on_host.endpoint import checks
from kimi_prov.on_host.endpoint.tls import compute_fingerprint
from kimi_prov.on_host.lifecycle.status import FIX as START

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import RuntimeAnswer
    from kimi_prov.contract.documents.plan import MachinePlan, Plan

DOCUMENTATION = """
module: kimi_verify
short_description: Verifies what is served
description:
  - Asks through the port from the control machine if that is allowed, else from the host itself.
  - Returns the host's document, and fails when a check fails.
options:
  outside:
    type: list
    elements: dict
    default: []
    description: The results of C(kimi_outside) by host.
  selection:
    type: dict
    default: {}
    description: The suite and its checks to run; the basic suite by default.
"""

PHASE = "verify"
Row = dict[str, Any]
Batch = Callable[[list[str]], list[Row]]


def find_source_address(address: str, port: int) -> str | None:
    """Return this machine's own address on the way to `address`, None without a route."""
    try:
        family, kind, protocol, _, destination = socket.getaddrinfo(
            address, port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(destination)  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _collect_proofs(plan: MachinePlan, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `kimi_network_proof` of each host of the plan's group."""
    known = variables.get("hostvars") or {}
    proofs = {}
    for name in groups.list_hosts(plan):
        registered = known[name].get("verify_network") if name in known else None
        proofs[name] = (registered or {}).get("proof")
    return proofs


def _list_stand_ins(plan: Plan, variables: Mapping[str, Any]) -> list[str]:
    """List the stand-ins on this host and, for a gateway, on the machines behind it."""
    names = suite.list_stand_ins(plan, variables)
    known = variables.get("hostvars") or {}
    behind = plan["gateway"]["hosts"] if gateways.is_gateway(plan) else []
    for name in (row["host"] for row in behind):
        done = known[name].get("verify_done") if name in known else None
        texts = ((done or {}).get("kimi_document") or {}).get("stand_ins") or ()
        names += [f"behind it: {text}" for text in texts if text not in names]
    return list(dict.fromkeys(names))


class ActionModule(HostAction):
    """A machine that does not answer has a document too."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run every check; the result fails when one of them does."""
        tries = suite.read_attempts(args["outside"])
        try:
            document = self._examine(_read_selection(args["selection"]), tries)
        except RemoteError as error:
            row = {"name": "machine", "status": "fail", "detail": error.line, "seconds": 0.0}
            document = suite.make_document(
                endpoint="",
                seen_from="none",
                reason="the machine did not answer",
                checks=[row],
                stand_ins=[],
            )
        if document is None:
            return {"skipped": True, "msg": "no chosen check is for this host"}
        # The result holds answers of the model.
        document = clean_text.clean_data(document)
        result = {"kimi_document": document}
        if not document["ok"]:
            rows = [row for row in document["checks"] if row["status"] == "fail"]
            details = "; ".join(f"{row['name']}: {row['detail']}" for row in rows)
            result |= build_failure(f"the served model did not pass: {details}")
        return result

    def _examine(self, selection: Selection, tries: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the host's document; None for a gateway for which no check was chosen."""
        runtime: RuntimeAnswer = call(self, "runtime")
        plan = cast("MachinePlan", runtime["plan"])
        if not plan:
            raise RemoteError(*NOT_APPLIED)
        if runtime.get("rests"):
            # The result is neither passed nor failed: no check ran.
            raise RemoteError(f"the model is {runtime['rests']}: it was not asked", START)
        proofs = _collect_proofs(plan, self.variables)
        group = plan.get("group")
        if group and group["rank"]:
            row = _select(selection, network.check_rank(plan, proofs))
            stand_ins = suite.list_stand_ins(plan, self.variables)
            return suite.make_rank_document(plan, runtime, row, stand_ins)
        exam, seen_from, reason = self._prepare(plan, runtime)
        subject = exam.subject
        if subject.gateway:
            selection = replace(selection, suite=BASIC)
            names = (*selection.names(subject), *suite.OF_GATEWAY)
            if not any(map(selection.includes, names)):
                return None
        batch = self._run_here(exam) if seen_from == "control" else self._run_there
        rows = acceptance.run_selection(selection, exam, batch)
        own = [
            suite.check_environment(runtime),
            suite.check_placement(plan, runtime),
            suite.check_loopback(runtime),
        ]
        own = [
            *([] if subject.gateway else own),
            suite.check_outsiders(tries),
            suite.check_certificate(runtime),
        ]
        if plan.get("group"):
            own.append(network.check_head(plan, proofs))
        rows += [_select(selection, row) for row in own]
        return suite.make_document(
            endpoint=subject.endpoint.url,
            seen_from=seen_from,
            reason=reason,
            checks=rows,
            stand_ins=_list_stand_ins(plan, self.variables),
            suite=selection.suite,
        )

    def _prepare(self, plan: MachinePlan, runtime: RuntimeAnswer) -> tuple[Exam, str, str]:
        """Return the exam, the place it is seen from, and the reason for that place."""
        local = self._connection.transport == "local"
        seen_from, reason = suite.choose_vantage(
            local=local,
            address=self.address,
            source=find_source_address(self.address, plan["proxy"]["port"]),
            networks=plan["proxy"]["allowed_networks"],
        )
        from_here = seen_from == "control"
        key = run_shell(self, f"cat {paths.VERIFY_KEY}", secret=True).strip() if from_here else ""
        address = "127.0.0.1" if local and from_here else self.address
        subject = checks.build_subject(
            plan, address, compute_fingerprint(runtime["certificate"]), key
        )
        machine = MachineTarget(lambda question: self._call_suite("ask", question))
        return Exam(subject, expectations.from_plan(plan), machine), seen_from, reason

    def _run_here(self, exam: Exam) -> Batch:
        """Run batches of checks through the port from this machine."""
        return lambda names: acceptance.run(exam, names, self._report_line)

    def _run_there(self, names: list[str]) -> list[Row]:
        """Run a batch of checks on the machine; if the machine is lost, all of them failed."""
        self._report_line(", ".join(names))
        try:
            rows: list[Row] = self._call_suite("run", {"names": names})["checks"]
        except RemoteError as error:
            lost = make_failure("the machine did not answer", "an answer", error.line)
            return [lost.row(name, 0.0) for name in names]
        return rows

    def _call_suite(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """Call the suite's part on the machine. Raises RemoteError, also for a lost connection.

        A lost connection must not end the task as unreachable: earlier results are reported.
        """
        try:
            return dict(call_sent(self, "suite", verb, stdin=request))
        except AnsibleConnectionFailure as error:
            raise RemoteError(f"the connection was lost: {error}") from None

    def _report_line(self, line: str) -> None:
        self.report(phase=PHASE, line=clean_text.clean_line(line))


def _read_selection(options: Mapping[str, Any]) -> Selection:
    """Read the checks to run, as the command gives them."""
    names = {key: tuple(map(str, options.get(key) or ())) for key in ("only", "leave")}
    return Selection(str(options.get("suite") or BASIC), **names)


def _select(selection: Selection, row: Row) -> Row:
    """Return the row of a check, or the row of a skipped check if it was not chosen."""
    return row if selection.includes(row["name"]) else make_skip(LEFT_OUT).row(row["name"], 0.0)
