"""The end of a run as text: failures in plain sentences, and the time of each phase."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text, groups
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import ExitCode
from kimi_prov.runner.failure_reasons import LOG
from kimi_prov.show.text.findings import format_reason
from kimi_prov.show.text.formats import describe_engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.runner.failure_reasons import Failure
    from kimi_prov.runner.outcome import HostFinding, Outcome, PhaseTime

_KIND = {
    ExitCode.BLOCKED: "blocked",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.BAD_INPUT: "bad input",
}
_BLOCKER = "blocker"


def format_failures(found: Sequence[Failure], log: Path) -> str:
    """Write each failure: host, reason, fix; and once the path of the log."""
    blocks = [_format_failure(failure) for failure in _merge_failures(found)]
    return "\n".join([*blocks, f"  log: {log}"]) if blocks else ""


def _merge_failures(found: Sequence[Failure]) -> list[Failure]:
    """Keep one failure for each reason of a host, also where several tasks had it."""
    kept: dict[tuple[str, str], Failure] = {}
    for failure in found:
        kept.setdefault((failure.host, failure.cause), failure)
    return list(kept.values())


def _format_failure(failure: Failure) -> str:
    kind = _KIND.get(failure.exit_code, "failed")
    rows = [row for row in failure.findings if row.get("severity") == _BLOCKER]
    explained = failure.is_explained and not rows
    where = f"{failure.phase}: {failure.task}" if failure.task else failure.phase
    places = (failure.host,) if explained else (failure.host, where)
    head = f"{kind}: {', '.join(filter(None, places))}" + (
        f": {failure.cause}" if explained else ""
    )
    lines = [clean_text.clean_line(head).rstrip(" ,:")]
    if rows:
        lines += [clean_text.clean_row(line) for row in rows for line in format_reason(row)]
    elif not explained:
        lines.append(f"  why: {clean_text.clean_line(failure.cause)}")
    if not rows and failure.fix != LOG:
        lines.append(f"  fix: {clean_text.clean_row(failure.fix)}")
    return "\n".join(lines)


def format_findings(found: Sequence[HostFinding]) -> str:
    """Write the findings of plugins by host, without those of severity ok."""
    return "\n".join(
        clean_text.clean_row(line)
        for row in found
        if row.finding.get("severity") != "pass"
        for line in (f"{row.finding.get('severity')}: {row.host}", *format_reason(row.finding))
    )


def format_times(outcome: Outcome) -> str:
    """Write a table: for each host the time of each phase, in their order."""
    hosts = list(dict.fromkeys(phase.host for phase in outcome.phases.values()))
    by_host = {host: [p for p in outcome.phases.values() if p.host == host] for host in hosts}
    lines: list[str] = []
    for host in hosts:
        lines.append(f"  {clean_text.clean_row(host)}")
        spent = [phase for phase in by_host[host] if phase.seconds >= 0.05]
        lines += [_format_phase(phase, outcome.wall_seconds) for phase in spent]
        rest = outcome.wall_seconds - sum(phase.seconds for phase in spent)
        if rest >= 0.05:
            lines.append(f"    {'waiting, Ansible itself':<24} {format_duration(rest):>8}")
    lines.append(f"  {'in all':<26} {format_duration(outcome.wall_seconds):>8}")
    return "\n".join(lines)


def _format_phase(phase: PhaseTime, wall: float) -> str:
    bar = "#" * (round(phase.seconds * 30 / wall) if wall else 0)
    changed = f" ({phase.changed} changed)" if phase.changed else ""
    took = format_duration(phase.seconds)
    return f"    {clean_text.clean_row(phase.phase):<24} {took:>8} {bar}{changed}".rstrip()


def _describe_endpoint(plan: MachinePlan, address: str) -> str:
    """Return the API's URL for clients, or the host that has it."""
    if not groups.serves_clients(plan):
        return (
            f"that of {groups.get_head(plan)}, the head of group {groups.get_group(plan)['name']}"
        )
    return f"{_build_url(address, plan['proxy']['port'])}/v1"


def _build_url(address: str, port: int) -> str:
    shown = f"[{address}]" if ":" in address else address
    return f"https://{shown}:{port}"


def format_served(plan: MachinePlan, host: str, address: str, stand_ins: Sequence[str]) -> str:
    """Write what a host serves now, and its stand-ins."""
    engine, model, web = plan["engine"], plan["model"], plan.get("web")
    about = f"{model['name']}, {format_bytes(model['bytes'])}, context {model['context']}"
    lines = [
        f"  {host}",
        f"    endpoint  {_describe_endpoint(plan, address)}",
        *([f"    web UI    {_build_url(address, web['port'])}/"] if web else []),
        f"    model     {', '.join(model['served_names'])} ({about})",
        f"    engine    {describe_engine(engine)}",
    ]
    notes = [
        textwrap.fill(f"note      {text}", 80, initial_indent=" " * 4, subsequent_indent=" " * 14)
        for text in stand_ins
    ]
    return "\n".join([*map(clean_text.clean_row, lines), *notes])


def format_counts(outcome: Outcome) -> str:
    """Write the number of tasks that changed something, by host."""
    hosts = sorted(outcome.stats.ok) if outcome.stats else []
    total = sum(outcome.changed.get(host, 0) for host in hosts)
    each = ", ".join(
        f"{clean_text.clean_row(host)} {outcome.changed.get(host, 0)}" for host in hosts
    )
    return f"changed={total}" + (f" ({each})" if len(hosts) > 1 else "")
