"""The outcome of a run: failures, findings, documents, plans, times, and the exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.errors import ExitCode
from kimi_prov.runner import failure_reasons, skipped_hosts
from kimi_prov.runner.events import Event, LogLine, Stats, TaskFinished
from kimi_prov.runner.failure_reasons import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan

# The first code that applies decides.
PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.BAD_INPUT,
    ExitCode.FAILED,
    ExitCode.UNREACHABLE,
    ExitCode.BLOCKED,
)
_PLAN = "kimi_plan"
_BATCH = "kimi_batch"
_ERROR = re.compile(r"^\s*(?:\[ERROR\]:|ERROR!)\s*(.*)", re.DOTALL)
_NO_HOSTS = re.compile(
    r"leaves us with no hosts|no hosts matched|no hosts to target", re.IGNORECASE
)


@dataclass
class PhaseTime:
    """The time that one host spent in one phase, in seconds."""

    host: str
    phase: str
    seconds: float = 0.0
    tasks: int = 0
    changed: int = 0


@dataclass(frozen=True)
class HostFinding:
    """A finding that a plugin made on `host` while it worked; it failed nothing."""

    host: str
    finding: Mapping[str, Any]


@dataclass
class Outcome:
    """Collected during the run; complete when the run has ended."""

    addresses: Mapping[str, str]
    # By host: ssh's arguments, with which it may be reached through others.
    ssh_arguments: Mapping[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)
    plans: dict[str, MachinePlan] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    phases: dict[tuple[str, str], PhaseTime] = field(default_factory=dict)
    stats: Stats | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    findings: list[HostFinding] = field(default_factory=list)
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    # By host whose batch did not begin: why the host was not changed.
    left: dict[str, str] = field(default_factory=dict)
    # By host that is in a batch: whether the batch began.
    turns: dict[str, bool] = field(default_factory=dict)
    # Hosts with a key or a password that was not shown yet.
    unseen_keys: set[str] = field(default_factory=set)
    interrupted: bool = False
    return_code: int | None = None
    wall_seconds: float = 0.0

    def add(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, TaskFinished):
            self._finished(event)
        elif isinstance(event, Stats):
            self.stats = event
        elif isinstance(event, LogLine):
            error = _ERROR.match(event.text)
            if error:
                self.errors.append(" ".join(error.group(1).split()))

    def close(self, return_code: int | None, wall_seconds: float, *, interrupted: bool) -> None:
        """Complete the outcome: a failure that was rescued or ignored does not count."""
        self.return_code, self.interrupted = return_code, interrupted
        self.wall_seconds = wall_seconds
        if self.stats:
            bad = {**self.stats.failures, **self.stats.unreachable}
            self.failures = [failure for failure in self.failures if bad.get(failure.host)]
            if not interrupted:
                self._leave(bad)
        if not self.failures and not interrupted and (return_code or self.stats is None):
            self.failures.append(self._unexplained(return_code))

    def mask(self, mask: Callable[[str], str]) -> None:
        """Mask secrets in the texts that will be shown."""
        self.failures = [
            replace(failure, cause=mask(failure.cause), fix=mask(failure.fix))
            for failure in self.failures
        ]
        self.warnings = [mask(text) for text in self.warnings]
        self.findings = [
            replace(
                row,
                finding={k: mask(v) if isinstance(v, str) else v for k, v in row.finding.items()},
            )
            for row in self.findings
        ]

    @property
    def changed(self) -> dict[str, int]:
        """Number of tasks that changed something, by host."""
        return dict(self.stats.changed) if self.stats else {}

    def exit_code(self, *also: ExitCode) -> ExitCode:
        """Return the exit code: of all that apply, the first in the documented order."""
        codes = {failure.exit_code for failure in self.failures} | set(also)
        if self.interrupted:
            codes.add(ExitCode.INTERRUPTED)
        return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)

    def _finished(self, event: TaskFinished) -> None:
        key = (event.host, event.phase)
        phase = self.phases.setdefault(key, PhaseTime(*key))
        phase.seconds += event.seconds
        phase.tasks += event.status != "skipped"
        if event.status == "changed":
            phase.changed += 1
            self.changes.append((event.host, event.phase, event.task))
            if str(event.action).startswith("kimi_"):
                reported = event.result.get("changes") or []
                self.changes += [(event.host, event.phase, f"  {text}") for text in reported]
        self._add_findings(event)
        if event.result.get("kimi_key_waits"):
            self.unseen_keys.add(event.host)
        self._turn(event)
        self._keep_document(event)
        if event.status == "unreachable":
            self.failures.append(
                failure_reasons.explain_unreachable(event, *self.find_way(event.host))
            )
        elif event.status == "failed" and not event.ignored:
            self.failures.append(failure_reasons.explain_failed(event, *self.find_way(event.host)))

    def _add_findings(self, event: TaskFinished) -> None:
        """Add the task's findings, and its warnings but for those of a finding.

        A plugin warns of its findings too, for those who run ansible-playbook alone.
        """
        findings = [HostFinding(event.host, row) for row in _list_findings(event)]
        for row in findings:
            if row not in self.findings:
                self.findings.append(row)
        warnings = event.result.get("warnings")
        if not isinstance(warnings, list) or not str(event.action).startswith("kimi_"):
            return
        observed = [str(row.finding.get("observed")) for row in findings]
        self.warnings += [
            f"{event.host}: {text}"
            for text in warnings
            if isinstance(text, str) and not any(words in text for words in observed)
        ]

    def _keep_document(self, event: TaskFinished) -> None:
        document = event.result.get("kimi_document")
        if not isinstance(document, dict):
            return
        if event.action != _PLAN:
            self.documents[event.host] = document
            return
        self.plans[event.host] = cast("MachinePlan", document)
        if isinstance(event.result.get("facts"), dict):
            self.facts[event.host] = event.result["facts"]

    def _turn(self, event: TaskFinished) -> None:
        if event.action == _BATCH:
            self.left |= event.result.get("kimi_skipped") or {}
            self.turns[event.host] = True
        elif _BATCH in (event.result.get("ansible_facts") or ()):
            self.turns[event.host] = False

    def _leave(self, bad: Mapping[str, int]) -> None:
        """Add the hosts left out without a report: the play ended when a machine was lost."""
        lost = [host for host, came in self.turns.items() if came and bad.get(host)]
        waiting = [
            host
            for host, came in self.turns.items()
            if not came and not bad.get(host) and host not in self.left
        ]
        if lost and waiting:
            self.left |= dict.fromkeys(waiting, skipped_hosts.describe_reason(lost))
            self.warnings.append(skipped_hosts.describe_skipped(lost, waiting))

    def find_way(self, host: str) -> tuple[str, str]:
        """Return the address of a host, and ssh's arguments for it."""
        return self.addresses.get(host, host), self.ssh_arguments.get(host, "")

    def _unexplained(self, return_code: int | None) -> Failure:
        text = next((error for error in self.errors if error), "")
        if _NO_HOSTS.search(text):
            return Failure(
                "",
                "",
                "",
                "no host of the group kimi is left to work on",
                "correct --limit",
                ExitCode.BAD_INPUT,
            )
        cause = text or f"ansible-playbook ended with {return_code} and gave no reason"
        if not return_code:
            cause = "Ansible's last reports were lost: what the run did on the hosts is not known"
        return Failure("", "", "", cause, failure_reasons.LOG, ExitCode.FAILED)


def _list_findings(event: TaskFinished) -> Iterator[Mapping[str, Any]]:
    """Give the findings under `kimi.findings` of a task that succeeded, of a loop's items too."""
    if event.status not in {"ok", "changed"}:
        return
    items = event.result.get("results")
    for result in (event.result, *(items if isinstance(items, list) else ())):
        ours = result.get("kimi") if isinstance(result, Mapping) else None
        rows = ours.get("findings") if isinstance(ours, Mapping) else None
        yield from (row for row in rows or () if isinstance(row, Mapping))
