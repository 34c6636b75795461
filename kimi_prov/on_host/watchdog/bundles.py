"""The evidence of an engine that hangs, collected before its restart: a folder of files.

The size of each folder and the number of folders are bounded. No environment of a process is
stored, no variable of a program, no request and no answer; secrets of this machine are masked. What
cannot be collected in its time is left out and reported: a GPU that does not answer does not
prevent the restart of an engine.

Decides: when an engine hangs, and what happens then (what is kept).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.system import journals
from kimi_prov.on_host.system.files import make_directory, read_json, read_text
from kimi_prov.on_host.system.local_secrets import Secrets
from kimi_prov.on_host.troubles.explain import JOURNAL, KERNEL, explain_files
from kimi_prov.on_host.watchdog import processes
from kimi_prov.on_host.watchdog.state import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.troubles.explain import Explanation

SUMMARY = "summary.json"
# Number of bundles that are kept, and bytes of one file of a bundle, which has at most ten files.
MAX_BUNDLES = 5
MAX_BYTES = 512 << 10
# Seconds for a whole bundle, and for one program.
TIMEOUT_S = 45.0
_PROGRAM_S = 15.0
_LINES = 400
# An older message of the kernel brought no hang of now.
_KERNEL_S = 3600.0
_PART = ".part-"
# The proxy sends this request every two seconds.
_HEALTH = re.compile(r'"GET /health HTTP')


@dataclass(frozen=True)
class Hang:
    """An engine that hangs: its unit, its control group, the reason, and its last counters.

    `stacks`: the program that reads Python's stacks, where there is one.
    """

    unit: str
    cgroup: str
    why: str
    still_s: float
    metrics: str = ""
    stacks: Path | None = None


@dataclass(frozen=True)
class Bundle:
    """A bundle's name, what could not be collected, and the cause that its logs show."""

    name: str
    missing: list[str]
    cause: Explanation | None


def save_bundle(paths: Paths, hang: Hang, at: float, whole_s: float = TIMEOUT_S) -> Bundle:
    """Write a bundle, and remove the oldest.

    `at`: seconds since 1970. Raises OSError where nothing can be written.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    name = f"{stamp}-{hang.unit.removesuffix('.service').removeprefix('kimi-')}"
    make_directory(paths.hangs, 0o700)
    for left in paths.hangs.glob(f"{_PART}*"):
        shutil.rmtree(str(left), ignore_errors=True)
    folder = paths.hangs / f"{_PART}{name}"
    folder.mkdir(mode=0o700)
    gathering = _Gathering(folder, Secrets(paths))
    pids = processes.list_pids(hang.cgroup)
    parts: Mapping[str, Callable[[], str]] = {
        "processes.txt": lambda: processes.describe_processes(pids),
        "sockets.txt": lambda: processes.describe_sockets(pids),
        "metrics.txt": lambda: hang.metrics,
        "stacks.txt": lambda: _read_stacks(pids, hang.stacks),
        JOURNAL: lambda: _read_journal(hang.unit),
        KERNEL: _read_kernel_log,
        "diagnosis.txt": lambda: gathering.diagnose(hang.unit, at),
        "nvidia-smi.txt": _read_gpus,
    }
    thread = threading.Thread(target=gathering.gather, args=[parts], daemon=True)
    thread.start()
    thread.join(whole_s)
    missing = gathering.close(list(parts), whole_s)
    cause = gathering.cause
    summary = {
        "unit": hang.unit,
        "at": format_time(at),
        "why": hang.why,
        "still_seconds": round(hang.still_s, 1),
        "processes": len(pids),
        "missing": missing,
        "cause": cause.title if cause else None,
    }
    gathering.write(SUMMARY, json.dumps(summary, indent=1, sort_keys=True) + "\n", last=True)
    os.rename(str(folder), str(paths.hangs / name))
    for old in list_names(paths)[:-MAX_BUNDLES]:
        shutil.rmtree(str(paths.hangs / old), ignore_errors=True)
    return Bundle(name, [f"{part}: {why}" for part, why in missing.items()], cause)


class _Gathering:
    """Writes parts as they come; after `close` nothing more is written."""

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        self._folder, self._secrets = folder, secrets
        self._lock = threading.Lock()
        self._closed = False
        self._done: list[str] = []
        self._missing: dict[str, str] = {}
        self._logs: dict[str, str] = {}
        self.cause: Explanation | None = None

    def gather(self, parts: Mapping[str, Callable[[], str]]) -> None:
        """Collect each part by itself."""
        for name, part in parts.items():
            try:
                text = part()
                if text.strip():
                    self.write(name, text)
            except (HostError, OSError, ValueError, LookupError) as error:
                self._missing[name] = describe_error(error)
            self._done.append(name)

    def diagnose(self, unit: str, at: float) -> str:
        """Return the cause that the logs written so far show; empty where none is known."""
        recent = format_time(at - _KERNEL_S)
        files = {
            JOURNAL: self._logs.get(JOURNAL, "").splitlines(),
            KERNEL: [row for row in self._logs.get(KERNEL, "").splitlines() if row >= recent],
        }
        self.cause = explain_files(files, unit=unit, seen="hang")
        return "\n".join(_format_cause(self.cause)) if self.cause else ""

    def close(self, wanted: Sequence[str], whole_s: float) -> dict[str, str]:
        """Return, for each missing part, why it is missing."""
        with self._lock:
            self._closed = True
        late = f"not gathered within {whole_s:.0f} s"
        return {**self._missing, **{name: late for name in wanted if name not in self._done}}

    def write(self, name: str, text: str, *, last: bool = False) -> None:
        """Write a part, masked, clean and bounded: of a log the end, else the beginning."""
        clean = clean_text.clean_block(self._secrets.mask(text))
        if name.endswith(".log"):
            self._logs[name] = clean
        content = clean.encode("utf-8", "replace")
        over = len(content) - MAX_BYTES
        if over > 0:
            told = f"... ({over} more bytes are left out)\n".encode()
            log = name.endswith(".log")
            content = told + content[over:] if log else content[:MAX_BYTES] + b"\n" + told
        with self._lock:
            if self._closed and not last:
                return
            descriptor = os.open(
                str(self._folder / name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
            )
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)


def _format_cause(cause: Explanation) -> list[str]:
    seen = [f"  {line.source}:{line.line}: {line.text}" for line in cause.evidence]
    about = [cause.title, "", f"cause: {cause.cause}", f"fix: {cause.fix}", f"id: {cause.id}"]
    return [*about, "seen:", *seen, ""]


def _read_stacks(pids: list[int], program: Path | None) -> str:
    """Read the Python stack of each process without stopping it; no variable's value is read."""
    if program is None or not program.exists():
        raise HostError("py-spy is not installed: the next apply tries again")
    found = []
    for pid in pids:
        done, text = _run_program([str(program), "dump", "--nonblocking", "--pid", str(pid)])
        found.append(
            text if done else f"process {pid}: not read: {clean_text.clean_line(text)[:300]}\n"
        )
    return "\n".join(found)


def _read_journal(unit: str) -> str:
    read = journals.read_last([unit], 4 * _LINES, most_bytes=4 * MAX_BYTES)
    lines = [_format_line(row) for row in read["entries"] if not _HEALTH.search(row["message"])]
    return "\n".join(lines[-_LINES:]) + "\n"


def _read_kernel_log() -> str:
    read = journals.read_last([journals.KERNEL], _LINES, most_bytes=MAX_BYTES)
    if not read["entries"]:
        raise HostError("the journal has no messages of the kernel")
    return "\n".join(_format_line(row) for row in read["entries"]) + "\n"


def _format_line(row: Mapping[str, Any]) -> str:
    return f"{format_time(row['time_us'] / 1e6)} {clean_text.clean_entry(row['message'])}"


def _read_gpus() -> str:
    if not any(os.access(f"{folder}/nvidia-smi", os.X_OK) for folder in os.get_exec_path()):
        return ""
    done, text = _run_program(["nvidia-smi", "-q"])
    if not done:
        raise HostError(f"nvidia-smi: {clean_text.clean_line(text)[:300]}")
    return text


def _run_program(command: Sequence[str]) -> tuple[bool, str]:
    """Run a program; return whether it succeeded, and its output.

    A program that the kernel blocks, as a GPU that fell off the bus blocks nvidia-smi, is not
    waited for.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1"},
        )
    except OSError as error:
        return False, describe_error(error)
    try:
        written, _ = process.communicate(timeout=_PROGRAM_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return False, f"no answer within {_PROGRAM_S:.0f} s"
    return process.returncode == 0, written.decode("utf-8", "replace")


def list_names(paths: Paths) -> list[str]:
    """Name the bundles, the oldest first."""
    found = (path for path in paths.hangs.glob("*") if not path.name.startswith("."))
    return sorted(path.name for path in found if path.is_dir() and not path.is_symlink())


def read(paths: Paths, most: int = 2, most_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """Return the newest bundles, the newest first: name, summary and the files' texts.

    `most_bytes`: of all files of one bundle; the longest are cut.
    """
    found = []
    for name in list_names(paths)[::-1][:most]:
        folder = paths.hangs / name
        files = {path.name: read_text(path) for path in sorted(folder.glob("*")) if path.is_file()}
        files.pop(SUMMARY, None)
        share = most_bytes // max(1, len(files))
        cut = {
            part: text if len(text) <= share else f"{text[:share]}\n... (cut)\n"
            for part, text in files.items()
        }
        found.append({"name": name, "summary": read_json(folder / SUMMARY), "files": cut})
    return found
