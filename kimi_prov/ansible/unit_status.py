"""Whether a unit has finished its work, failed or goes on, by an answer of `follow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.troubles.explain import explain_lines
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.answers import FollowAnswer
    from kimi_prov.contract.documents.findings import Finding

REPORTED = ("done_bytes", "total_bytes", "rate_bytes_per_s", "eta_s", "line")
# systemd's results for a process that could not report its own error.
RESULTS = {
    "oom-kill": "the kernel killed it because memory ran out",
    "signal": "it was killed by a signal",
    "core-dump": "it crashed",
    "timeout": "it took longer than its unit allows",
    "start-limit-hit": "it failed several times in a row",
    "dependency": "a unit that it needs failed",
}


@dataclass(frozen=True)
class Verdict:
    """Whether to go on waiting, the message at the end, and the fix if the job knows one."""

    state: Literal["running", "done", "failed"]
    message: str = ""
    fix: str | None = None


def classify(unit: str, answer: FollowAnswer) -> Verdict:
    """Return the state of the work from systemd's properties and the job's progress.

    A unit that is queued or starting is running; a oneshot that has finished is active.
    """
    shown: Mapping[str, str] = answer["unit"]
    progress: Mapping[str, Any] = answer.get("progress") or {}
    active = shown.get("ActiveState", "")
    failed = _read_error(progress)
    if shown.get("LoadState") == "not-found":
        return Verdict("failed", f"there is no {unit} on the machine")
    if active == "failed":
        failed = failed or _explain_failure(unit, shown, answer.get("journal") or [])
        return Verdict("failed", failed.message, failed.fix)
    if shown.get("SubState", "").startswith("auto-restart") and failed:
        message = f"{failed.message}; {unit} goes on trying by itself"
        return Verdict("failed", message, failed.fix)
    if shown.get("Job", "0") not in ("", "0") or active in ("activating", "deactivating"):
        return Verdict("running")
    if active == "active":
        return Verdict("done", str(progress.get("message") or ""))
    return Verdict("failed", f"{unit} was stopped before it was done")


def _read_error(progress: Mapping[str, Any]) -> HostError | None:
    """Return why the job failed; None if it did not, or ended before it could report."""
    if progress.get("state") != "failed":
        return None
    message = progress.get("message")
    return HostError.from_answer({"error": progress.get("error") or message}) if message else None


def _explain_failure(unit: str, shown: Mapping[str, str], journal: list[str]) -> HostError:
    """Return why a job failed that could not report it: by its lines, or else the last of them."""
    result = shown.get("Result", "")
    reason = RESULTS.get(result, f"exit status {shown.get('ExecMainStatus', '?')}")
    explanation = explain_lines(journal, unit=unit)
    if explanation is not None:
        return HostError(
            f"{unit}: {reason}; {explanation.title}: {explanation.line}", explanation.fix
        )
    last = journal[-1] if journal else "nothing in the journal"
    return HostError(f"{unit}: {reason}; its last line: {last}")


def list_warnings(answer: FollowAnswer) -> list[str]:
    """Return the warnings of work that was completed all the same."""
    progress: Mapping[str, Any] = answer.get("progress") or {}
    return [str(text) for text in progress.get("warnings") or ()]


def make_findings(warnings: Sequence[str]) -> list[Finding]:
    """Return the findings about a download that left its neighbour."""
    return [
        make_finding(
            "weights.neighbour_left",
            observed=text,
            required="verified files from the neighbour, as planned",
            fix="look at that host: its network, its disk, who else has root there; "
            "kimi_weights_from: source leaves it out",
        )
        for text in warnings
    ]


def build_update(phase: str, answer: FollowAnswer) -> dict[str, Any]:
    """Return the progress that is shown: bytes, rate, time left and one line."""
    progress: Mapping[str, Any] = answer.get("progress") or {"line": "starting"}
    return {"phase": phase, **{key: progress[key] for key in REPORTED if key in progress}}
