"""The commands that run a playbook: what goes in, what is shown, which exit code comes out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.console import run_summary, screens
from kimi_prov.console.output import Output, say
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import inventory as inventories
from kimi_prov.runner import locks, results, run
from kimi_prov.runner.arguments import Request
from kimi_prov.runner.run_folder import state_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kimi_prov.runner.inventory import Inventory
    from kimi_prov.runner.run import Finished

    Text = Callable[[Mapping[str, Any]], str]
    Changes = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    StandIns = Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]

_BLOCKER = "blocker"


@dataclass(frozen=True)
class Passed:
    """Options that go through to ansible-playbook as they are."""

    limit: str | None = None
    tags: str | None = None
    skip_tags: str | None = None
    check: bool = False
    diff: bool = False
    extra: Sequence[str] = ()


def apply(path: Path, passed: Passed, stand_ins: StandIns) -> ExitCode:
    """Carry the plan out; end with the endpoint and where each minute went, on standard output."""
    inventory, request = _prepare("apply", "site", path, passed)
    if passed.check:
        finished = _run(request, inventory)
    else:
        with locks.held(path, "apply", state_home()) as descriptor:
            finished = _run(request, inventory, (descriptor,))
    code = _conclude(finished)
    if code is ExitCode.OK:
        sys.stdout.write(_summary(finished, inventory, passed, stand_ins))
    elif code is ExitCode.INTERRUPTED:
        say("what is done is kept; the same command goes on from there")
    return code


def plan(path: Path, passed: Passed, output: Output, text: Text) -> ExitCode:
    """Print every host's plan. Blockers make it exit 3, after the plan was printed."""
    output.check()
    inventory, request = _prepare("plan", "plan", path, passed)
    finished = _run(request, inventory)
    plans = finished.outcome.plans
    blocked = any(
        row["severity"] == _BLOCKER for found in plans.values() for row in found["findings"]
    )
    if plans:
        document = {"schema": "kimi-prov/plan/v1", "hosts": plans}
        output.write(document, lambda: _each(plans, text))
    return _conclude(finished, *([ExitCode.BLOCKED] if blocked else []))


def probe(
    path: Path, variables: Mapping[str, Any], *, default_model: str
) -> tuple[dict[str, tuple[dict[str, Any], dict[str, Any]]], ExitCode]:
    """Describe and plan every host of an inventory: facts and plan by host, and the exit code.

    `variables` win over the inventory; `default_model` is for one in which no host names a model.
    """
    inventory, request = _prepare("check", "plan", path, Passed(), variables)
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": default_model, **variables})
    finished = _run(request, inventory)
    outcome = finished.outcome
    found = {host: (outcome.facts[host], plan) for host, plan in outcome.plans.items()}
    return found, _conclude(finished)


def verify(path: Path, limit: str | None, output: Output, text: Text) -> ExitCode:
    """Have every served model prove itself; a check that fails makes it exit 1."""

    def nothing(why: str) -> dict[str, Any]:
        check = {"name": "machine", "status": "fail", "detail": why, "seconds": 0.0}
        return {
            "ok": False,
            "endpoint": "",
            "vantage": "none",
            "vantage_reason": "the machine did not answer",
            "checks": [check],
            "stand_ins": [],
        }

    return _examine("verify", path, limit, output, text, nothing)


def status(path: Path, limit: str | None, output: Output, text: Text) -> ExitCode:
    """Say what runs on every host; one that does not serve makes it exit 1."""

    def nothing(why: str) -> dict[str, Any]:
        return {"ok": False, "provisioned": False, "detail": why, "stand_ins": []}

    return _examine("status", path, limit, output, text, nothing)


def bench(path: Path, limit: str | None, output: Output, text: Text, changes: Changes) -> ExitCode:
    """Measure every host; keep the results, each with its `changes` against the last."""

    def nothing(why: str) -> dict[str, Any]:
        return {"ok": False, "detail": why, "stand_ins": []}

    def keep(host: str, found: dict[str, Any]) -> None:
        place = results.folder(state_home(), path, host)
        before = results.last(place)
        if before is not None:
            found["last"] = changes(before, found)
        results.keep(place, {**found, "last": None})

    return _examine("bench", path, limit, output, text, nothing, keep)


def key(path: Path, limit: str | None, *, rotate: bool) -> ExitCode:
    """Print `HOST KEY` for each host whose key nobody has seen yet; `rotate` makes new ones."""
    passed = Passed(limit=limit)
    inventory, request = _prepare("key", "key", path, passed, {"kimi_key_rotate": rotate})
    finished = _run(request, inventory)
    lines = [json.loads(line) for line in finished.key_lines]
    for line in lines:
        if line.get("key"):
            sys.stdout.write(f"{line['host']} {line['key']}\n")
        else:
            say(f"{line['host']}: {line.get('detail') or 'there is no key to show'}")
    sys.stdout.flush()
    if any(line.get("key") for line in lines):
        say("keep it now: it is not shown again")
    silent = not all(line.get("key") for line in lines)
    return _conclude(finished, *([ExitCode.FAILED] if silent else []))


def destroy(
    path: Path, limit: str | None, *, confirmed: bool, purge: bool, ask: Callable[[str], bool]
) -> ExitCode:
    """Put the machines back as they were, after `ask` or with `confirmed`."""
    variables = {"destroy_confirmed": True, "destroy_purge_weights": purge}
    inventory, request = _prepare("destroy", "destroy", path, Passed(limit=limit), variables)
    if not confirmed:
        _confirm(inventory, limit, purge=purge, ask=ask)
    with locks.held(path, "destroy", state_home()) as descriptor:
        finished = _run(request, inventory, (descriptor,))
    code = _conclude(finished)
    if code is ExitCode.OK:
        told = sorted(finished.outcome.documents.items())
        kept = [f"{host} keeps {', '.join(row['kept'])}" for host, row in told if row["kept"]]
        sys.stdout.write("\n".join([run_summary.counts(finished.outcome), *kept]) + "\n")
    return code


def _confirm(
    inventory: Inventory, limit: str | None, *, purge: bool, ask: Callable[[str], bool]
) -> None:
    hosts = limit or ", ".join(inventory.hosts)
    if not sys.stdin.isatty():
        raise UserError(
            f"destroy would take the service off {hosts}, and there is no terminal to ask on",
            fix="kimi-prov destroy --yes",
        )
    also = " and DELETE THE WEIGHTS" if purge else " (the weights stay)"
    if not ask(f"Take the service off {hosts}{also}?"):
        raise UserError("not destroyed: the answer was no", fix="answer y, or give --yes")


def _prepare(
    command: str,
    playbook: str,
    path: Path,
    passed: Passed,
    variables: Mapping[str, Any] | None = None,
) -> tuple[Inventory, Request]:
    """Judge everything that was given before anything starts."""
    files = tuple(inventories.vars_file(text) for text in passed.extra)
    inventory = inventories.load(path)
    inventories.check_limit(inventory, passed.limit)
    request = Request(
        command=command,
        playbook=resources.playbook(playbook),
        inventory=inventory.path,
        limit=passed.limit,
        tags=passed.tags,
        skip_tags=passed.skip_tags,
        check=passed.check,
        diff=passed.diff,
        vars_files=files,
        variables=variables or {},
    )
    return inventory, request


def _run(request: Request, inventory: Inventory, inherit: Sequence[int] = ()) -> Finished:
    if not request.playbook.is_file():
        raise UserError(
            f"{request.playbook} is missing: this installation is not whole",
            fix="pip install --force-reinstall kimi-prov",
            exit_code=ExitCode.FAILED,
        )
    return run.run(request, inventory, screens.choose(), inherit=inherit)


def _conclude(finished: Finished, *also: ExitCode) -> ExitCode:
    """Say what went wrong and where the log is; return the exit code."""
    code = finished.outcome.exit_code(*also)
    failures = finished.outcome.failures
    for warning in dict.fromkeys(finished.outcome.warnings):
        say(f"warning: {warning}")
    if failures:
        say("\n" + run_summary.failures(failures, finished.log))
    elif code is ExitCode.INTERRUPTED:
        say(f"interrupted; log: {finished.log}")
    return code


def _examine(
    command: str,
    path: Path,
    limit: str | None,
    output: Output,
    text: Text,
    nothing: Callable[[str], dict[str, Any]],
    keep: Callable[[str, dict[str, Any]], None] | None = None,
) -> ExitCode:
    output.check()
    inventory, request = _prepare(command, command, path, Passed(limit=limit))
    finished = _run(request, inventory)
    hosts = dict(finished.outcome.documents)
    if keep is not None:
        for host, found in hosts.items():
            keep(host, found)
    for failure in finished.outcome.failures:
        if failure.host:
            hosts.setdefault(failure.host, nothing(failure.cause))
    ok = bool(hosts) and all(found.get("ok") for found in hosts.values())
    if hosts:
        document = {"schema": f"kimi-prov/{command}/v1", "ok": ok, "hosts": hosts}
        output.write(document, lambda: text(document))
    # What the report itself says of a host is not said twice; only that it failed is.
    told = [f for f in finished.outcome.failures if f.host not in finished.outcome.documents]
    finished = replace(finished, outcome=replace(finished.outcome, failures=told))
    # A host that was not reached speaks for itself with its own exit code.
    bad = any(not found.get("ok") for found in finished.outcome.documents.values())
    return _conclude(finished, *([ExitCode.FAILED] if bad else []))


def _each(plans: Mapping[str, Mapping[str, Any]], text: Text) -> str:
    return "\n".join(f"{host}\n{'=' * len(host)}\n{text(found)}" for host, found in plans.items())


def _summary(finished: Finished, inventory: Inventory, passed: Passed, stand_ins: StandIns) -> str:
    outcome = finished.outcome
    hosts = sorted(outcome.plans)
    blocks = [run_summary.counts(outcome) + (" (check mode)" if passed.check else "")]
    if passed.check:
        blocks += [f"  {host}: {phase}: {task}" for host, phase, task in outcome.changes]
    else:
        blocks.append("served:")
        for host in hosts:
            found = outcome.plans[host]
            said = stand_ins(found, inventory.hosts.get(host, {}))
            blocks.append(run_summary.served(found, host, inventory.address(host), said))
    blocks += ["where the time went:", run_summary.times(outcome)]
    if not passed.check:
        blocks.append(f"the API key, once:  kimi-prov key {inventory.path}")
    return "\n".join([*blocks, f"log: {finished.log}"]) + "\n"
