"""The events of ansible-runner as a few types."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Status = Literal["ok", "changed", "skipped", "failed", "unreachable"]
_STATUSES: dict[str, Status] = {
    "runner_on_ok": "ok",
    "runner_on_skipped": "skipped",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
}


@dataclass(frozen=True)
class TaskStarted:
    """A host has started a task. `phase` is the role, or else the action or playbook."""

    host: str
    phase: str
    task: str


@dataclass(frozen=True)
class TaskFinished:
    """A host has finished a task after `seconds`; `result` is the module's or plugin's own."""

    host: str
    phase: str
    task: str
    action: str
    status: Status
    seconds: float
    result: Mapping[str, Any]
    ignored: bool = False


@dataclass(frozen=True)
class Stats:
    """Ansible's own count at the end, by host."""

    ok: Mapping[str, int]
    changed: Mapping[str, int]
    failures: Mapping[str, int]
    unreachable: Mapping[str, int]
    rescued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LogLine:
    """A line of Ansible that is in no task's result: a warning, an error, a plain line."""

    text: str


@dataclass(frozen=True)
class Diff:
    """What a task changed in a file, as Ansible writes it."""

    host: str
    text: str


Event = TaskStarted | TaskFinished | Stats | LogLine | Diff


def parse_event(raw: Mapping[str, Any]) -> Event | None:
    """Return the typed event, or None for an event that is not used."""
    name = raw.get("event")
    data: Mapping[str, Any] = raw.get("event_data") or {}
    if name == "playbook_on_stats":
        return Stats(
            ok=data.get("ok") or {},
            changed=data.get("changed") or {},
            failures=data.get("failures") or {},
            unreachable=data.get("dark") or {},
            rescued=data.get("rescued") or {},
        )
    if name == "runner_on_start":
        return TaskStarted(str(data.get("host")), name_phase(data), str(data.get("task") or ""))
    if name in _STATUSES:
        return _parse_finished(_STATUSES[name], data)
    if name == "runner_on_file_diff":
        text = str(raw.get("stdout") or "").strip("\r\n")
        return Diff(str(data.get("host")), text) if text.strip() else None
    if name in {"verbose", "warning", "error", "deprecated", "system_warning"}:
        text = str(raw.get("stdout") or "").strip()
        return LogLine(text) if text else None
    return None


def name_phase(data: Mapping[str, Any]) -> str:
    """Return the phase of a task: its role, else its own action, or its playbook."""
    role = data.get("role")
    if role:
        return str(role)
    action = str(data.get("task_action") or data.get("resolved_action") or "")
    short = action.rpartition(".")[2]
    if short == "kimi_host":  # one action for many subcommands
        return PurePath(str(data.get("playbook") or "other")).stem
    return short.removeprefix("kimi_") if short.startswith("kimi_") else "other"


def _parse_finished(status: Status, data: Mapping[str, Any]) -> TaskFinished:
    result = data.get("res")
    result = result if isinstance(result, dict) else {}
    if status == "ok" and result.get("changed"):
        status = "changed"
    return TaskFinished(
        host=str(data.get("host")),
        phase=name_phase(data),
        task=str(data.get("task") or ""),
        action=str(data.get("task_action") or "").rpartition(".")[2],
        status=status,
        seconds=float(data.get("duration") or 0.0),
        result=result,
        ignored=bool(data.get("ignore_errors")),
    )
