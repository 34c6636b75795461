"""The page of what was proven on real GPUs, from the reports of `make gpu` that were kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

# Of the figures of a report, those that a table has room for, by what they are.
_FIGURES = {
    "apply_s": "seconds of the first `apply`, engine's environment, weights and start included",
    "second_apply_s": "seconds of an `apply` that finds everything done",
    "after_kill_of_worker_s": "seconds from `kill -9` of a worker to an answer",
    "after_kill_of_server_s": "seconds from `kill -9` of the server to an answer",
    "memory_used_mib": "MiB in use on each card while it serves",
    "memory_after_mib": "MiB in use on each card after `destroy`",
    "exposure": "exposure of the unit, by `systemd-analyze security`",
    "first_start_s": "seconds of the first start, compiling included, until an answer",
    "start_from_caches_s": "seconds of a start from what was compiled",
    "after_memory_came_free_s": "seconds from the end of what held the memory to an answer",
    "after_reboot_s": "seconds from the order to reboot the host to an answer",
    "destroy_s": "seconds of `destroy`",
}


def lines(folder: Path) -> list[str]:
    """Return the page's lines for the reports in `folder`, the newest first.

    A report is NAME/report.json; NAME/note.yaml beside it says what was run and what stood in.
    """
    files = sorted(folder.glob("*/report.json"), reverse=True)
    reports = [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    reports.sort(key=lambda pair: pair[1]["date"], reverse=True)
    found: list[str] = []
    for file, report in reports:
        note = yaml.safe_load((file.parent / "note.yaml").read_text(encoding="utf-8"))
        found += _section(file.parent.name, report, note)
    return found


def _section(name: str, report: dict[str, Any], note: dict[str, Any]) -> list[str]:
    cards, figures = report["cards"], report["figures"]
    used = "kimi-kt-experts" not in figures.get("engine", "")
    said = [
        *(_cards(cards) if used else []),
        *_processor(report.get("processor")),
        f"| kernel | {report['kernel']} |",
        f"| engine | {_engine(figures)} |",
        f"| commit | {note['commit']} |",
        f"| the whole report | `tests/data/recordings/gpu-reports/{name}` |",
    ]
    outcomes = [
        f"| {row['claim']} | {_outcome(row)} | {row['seconds']} |" for row in report["tests"]
    ]
    measured = [
        f"| {what} | {_value(figures[key])} |" for key, what in _FIGURES.items() if key in figures
    ]
    return [
        "",
        f"## {note['title']}, {report['date']}",
        "",
        *("| | |", "| --- | --- |", *said),
        "",
        "What stood in or was changed for that machine:",
        "",
        *(f"- {row}" for row in note["stood_in"]),
        "",
        *("| claim | outcome | s |", "| --- | --- | --- |", *outcomes),
        *(["", "| figure | |", "| --- | --- |", *measured] if measured else []),
        *(f"\n{row}" for row in note.get("also", [])),
    ]


def _cards(cards: list[dict[str, str]]) -> list[str]:
    first = cards[0]
    return [
        f"| cards | {len(cards)}x {first['name']}, {first['memory.total']} each |",
        f"| driver | {first['driver_version']} |",
    ]


def _processor(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    amx = ", ".join(found["amx"]) or "no AMX"
    memory = f"{found['memory_bytes'] / 2**30:.0f} GiB"
    return [f"| processor | {found['name']}, {found['cpus']} CPUs, {amx}, {memory} |"]


def _engine(figures: dict[str, Any]) -> str:
    if "engine" not in figures:
        return "none was started"
    return f"{figures['engine']}, torch {figures['torch']}, Python {figures['python']}"


def _outcome(row: dict[str, Any]) -> str:
    reason = str(row.get("reason", "")).replace("|", "\\|")
    return f"{row['outcome']}: {reason}" if reason else str(row["outcome"])


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
