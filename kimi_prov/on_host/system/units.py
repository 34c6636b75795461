"""Query and control our units through systemctl."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import journals
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.troubles.explain import explain_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kimi_prov.on_host.troubles.explain import Explanation

SHOWN = (
    "LoadState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts",
    "UnitFileState", "ActiveEnterTimestampMonotonic", "MemoryCurrent", "ExecMainStatus",
    "ControlGroup", "NeedDaemonReload", "Job",
)  # fmt: skip
# Seconds for starting and stopping; a model that loads is not waited for here.
CHANGE_TIMEOUT_S = 120.0
# The line that names the cause, as Python, systemd and the kernel write it.
CAUSE = re.compile(
    r"(?:^|[\s:(])(?:[A-Za-z_.]*Error|[A-Za-z_.]*Exception|FATAL|CRITICAL|Killed|Cannot|cannot|"
    r"No such file|not found|refused|error:)"
)
# `(EngineCore pid=7) INFO 11-21 03:04:19 [core.py:185] `, as vLLM begins its lines.
LOG_PREFIX = re.compile(
    r"^(?:\(\w+ pid=\d+\) *)?(?:[A-Z]+ \d\d-\d\d [\d:]+ (?:\[[\w./]+:\d+\] ?)*)?\s*"
)
# Lines that follow from the cause, source in a traceback, parts that the unit does not need, and
# what an engine itself logs below an error (`libiomp is not found in LD_PRELOAD`).
NOISE = re.compile(
    r"^(?:\(\w+ pid=\d+\) *)?(?:DEBUG|INFO|WARNING) \d\d-\d\d |EngineDeadError|Traceback|"
    r"During handling|engine core initialization failed|WorkerProc initialization failed|"
    r"\braise \w|/nvidia-modprobe\b",
    re.I,
)
MAX_THREADS = 2000
# Lines of a journal in which a cause is looked for: each worker of an engine writes a traceback.
FAILURE_LINES = 2000
# What the kernel wrote before a failure: seconds, lines.
_KERNEL_S = 600.0
_KERNEL_LINES = 400
# systemd's words where a run of a unit begins, and where it has ended.
_BEGINS = re.compile(r"Starting .+\.\.\.\Z")
_HAS_ENDED = re.compile(r": (?:Main process exited|Failed with result|Control process exited)")
# systemd writes one of these for each thread of an engine, and so hides the lines before.
ENDED = re.compile(r": Killing process \d+ \(")


def build_show_command(names: Iterable[str], properties: Iterable[str]) -> list[str]:
    """Return the `systemctl show` command for these properties; names may be patterns."""
    return ["systemctl", "show", "--property=" + ",".join(["Id", *properties]), "--", *names]


def parse_properties(text: str) -> dict[str, dict[str, str]]:
    """Return the properties of each unit by its Id, as systemd writes them."""
    found = {}
    for block in text.strip().split("\n\n"):
        pairs = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if pairs.get("Id"):
            found[pairs["Id"]] = pairs
    return found


def read_properties(names: Iterable[str], wanted: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return properties of units; empty without names."""
    names = list(names)
    return parse_properties(run(*build_show_command(names, wanted)).stdout) if names else {}


def read_states(*names: str) -> dict[str, dict[str, Any]]:
    """Return each unit's state by name; one that does not exist has load_state `not-found`."""
    return {name: _parse_types(pairs) for name, pairs in read_properties(names, SHOWN).items()}


def _parse_types(pairs: dict[str, str]) -> dict[str, Any]:
    def number(name: str) -> int | None:
        text = pairs.get(name, "")
        return int(text) if text.isdigit() and int(text) < 2**63 else None

    return {
        "load_state": pairs.get("LoadState", ""),
        "state": pairs.get("ActiveState", ""),
        "sub_state": pairs.get("SubState", ""),
        "result": pairs.get("Result", ""),
        "enabled": pairs.get("UnitFileState", "").startswith("enabled"),
        "stale": pairs.get("NeedDaemonReload") == "yes",
        "main_pid": number("MainPID") or 0,
        "restarts": number("NRestarts") or 0,
        "exit_status": number("ExecMainStatus"),
        "memory_bytes": number("MemoryCurrent"),
        "active_since_monotonic_us": number("ActiveEnterTimestampMonotonic") or 0,
        "cgroup": pairs.get("ControlGroup", ""),
        # systemd is about to start or stop it.
        "queued": bool(number("Job")),
    }


def converge(name: str, *, check: bool = False) -> bool:
    """Make systemd read the unit's file again where it changed, and enable it; True if it did."""
    unit = read_states(name).get(name, {})
    if unit.get("enabled") and not unit.get("stale"):
        return False
    if not check:
        run("systemctl", "daemon-reload")
        run_systemctl("enable", name)
    return not unit.get("enabled")


def control(verb: str, name: str) -> None:
    """Start, restart or reload a unit; raises HostError with the cause from its journal."""
    done = run("systemctl", verb, name, timeout=CHANGE_TIMEOUT_S)
    if done.returncode != 0:
        raise make_error(f"{name} did not {verb}", name, read_journal(name, FAILURE_LINES))


def run_systemctl(verb: str, *arguments: str) -> None:
    """Run a verb of systemctl; raises HostError with its output."""
    done = run("systemctl", verb, *arguments, timeout=CHANGE_TIMEOUT_S)
    if done.returncode != 0:
        words = " ".join((verb, *arguments))
        raise HostError(f"systemctl {words}: {done.stderr.strip()}")


def read_journal(unit: str, lines: int = 60, since_s: float | None = None) -> list[str]:
    """Return the last lines of a unit's journal, plain text, oldest first.

    `since_s`: only lines from this second since 1970 on. Lines about killed threads are left out:
    for an engine on GPUs these are hundreds.
    """
    read = f"--lines={lines + MAX_THREADS}"
    since = [] if since_s is None else [f"--since=@{since_s:.0f}"]
    done = run("journalctl", "--no-pager", "--output=cat", read, *since, "--unit=" + unit)
    if done.returncode != 0:
        return []
    clean = (line.strip() for line in clean_text.clean_block(done.stdout).splitlines())
    told = [line for line in clean if line and not line.startswith("-- ")]
    return [line for line in told if not ENDED.search(line)][-lines:]


def strip_log_prefix(line: str) -> str:
    """Return an engine's log line without process, time and source file before it."""
    return LOG_PREFIX.sub("", line)[:400]


@dataclass(frozen=True)
class Failure:
    """Why a unit failed, in one line, and what to do; None where only the journal may help."""

    reason: str
    fix: str | None = None


def make_error(what: str, unit: str, lines: Sequence[str]) -> HostError:
    """Return the error of a unit that failed: what happened, why, and what to do."""
    failure = explain_failure(unit, lines)
    log = f"journalctl -u {unit}"
    fix = f"{failure.fix} (log: {log})" if failure.fix else f"read its journal: {log}"
    return HostError(f"{what}: {failure.reason}", fix)


def explain_failure(unit: str, lines: Sequence[str]) -> Failure:
    """Return why a unit failed, by its journal and the kernel's messages of the last minutes.

    That is the cause that a row of knowledge recognises, or else the line that names an error.
    """
    explanation = explain_unit(unit, lines)
    if explanation is None:
        return Failure(find_cause([*lines]))
    return Failure(f"{explanation.title}: {strip_log_prefix(explanation.line)}", explanation.fix)


def explain_unit(unit: str, lines: Sequence[str]) -> Explanation | None:
    """Explain the last run by a row; or the one before, where systemd has just started the last."""
    kernel = _read_kernel()
    for run_lines in reversed(_split_runs(lines)[-2:]):
        explanation = explain_lines(run_lines, kernel, unit=unit)
        if explanation or any(_HAS_ENDED.search(line) for line in run_lines):
            return explanation
    return None


def _split_runs(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines of each run: those of an earlier one do not explain a later one's end."""
    runs: list[list[str]] = [[]]
    for line in lines:
        if _BEGINS.match(line):
            runs.append([])
        runs[-1].append(line)
    return runs


def _read_kernel() -> list[str]:
    """Return the kernel's last messages; none where they cannot be read."""
    try:
        answer = journals.read_last([journals.KERNEL], _KERNEL_LINES, time.time() - _KERNEL_S)
    except HostError:
        return []
    return [entry["message"] for entry in answer["entries"]]


def find_cause(lines: list[str]) -> str:
    """Return the line of a failed unit's journal that says why: the last that names an error."""
    at = [n for n, line in enumerate(lines) if CAUSE.search(line) and not NOISE.search(line)]
    if not at:
        return strip_log_prefix(lines[-1]) if lines else "nothing in the journal"
    text = strip_log_prefix(lines[at[-1]])
    if "validation error" in text and at[-1] + 1 < len(lines):
        text += ": " + strip_log_prefix(
            lines[at[-1] + 1]
        )  # pydantic names the error on the next line.
    return text
