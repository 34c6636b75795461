"""Progress of long work on a machine: action plugins report it, the command line reads it.

It goes through a file of JSON lines that only the operator may read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.runner.arguments import PROGRESS
from kimi_prov.runner.redaction import mask_value

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL_S = 5.0
# Logs that are followed for days pass through the file: lines that were read make room.
_MAX_BYTES = 8 << 20
# A writer waits at most so long for the reader of a full file.
_FULL_S = 30.0
# The year 2200: no time of a machine is later.
# Bytes, rates and seconds of a machine are far below.
_MAX_NUMBER = 1 << 63
_LATEST_US = 7_258_118_400_000_000
_last: dict[tuple[str, str], tuple[float, str]] = {}


class Display(Protocol):
    """The method of Ansible's own display that is used here."""

    def display(self, msg: str) -> None:
        """Show one line."""


@dataclass(frozen=True)
class LogEntry:
    """A line of a journal: microseconds since 1970, syslog's priority where it is known."""

    time_us: int
    unit: str
    message: str
    priority: int | None = None


@dataclass(frozen=True)
class ProgressUpdate:
    """Progress of one host in one piece of work. Bytes, bytes per second, seconds.

    `entries`: lines of journals, for `logs`; `document`: the host's status, for `status`.
    """

    host: str
    phase: str
    line: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_per_s: float | None = None
    eta_s: float | None = None
    entries: tuple[LogEntry, ...] = ()
    document: Mapping[str, Any] | None = None

    def masked(self, mask: Callable[[str], str]) -> ProgressUpdate:
        """Return the update without secrets."""
        entries = tuple(replace(entry, message=mask(entry.message)) for entry in self.entries)
        document = mask_value(self.document, mask) if self.document is not None else None
        return replace(self, line=mask(self.line), entries=entries, document=document)


def report_progress(display: Display, host: str, update: Mapping[str, Any]) -> None:
    """Report the progress of `host`.

    Under `kimi-prov` a line goes to the file that KIMI_PROV_PROGRESS names; under a plain
    ansible-playbook a sentence goes to the screen, at most every five seconds for each phase.
    """
    path = os.environ.get(PROGRESS)
    if path:
        line = json.dumps({"host": host, **update}) + "\n"
        _append_line(path, line.encode())
        return
    for entry in parse_entries(update.get("entries")):
        display.display(clean_text.clean_row(f"{host} {entry.unit} {entry.message}"))
    if "entries" in update:
        return
    if "document" in update:
        display.display(clean_text.clean_row(f"{host} {json.dumps(update['document'])}"))
        return
    key = (host, str(update.get("phase")))
    text = format_update(_parse_update({"host": host, **update}))
    then, before = _last.get(key, (float("-inf"), ""))
    if time.monotonic() - then >= INTERVAL_S and text != before:
        _last[key] = (time.monotonic(), text)
        display.display(clean_text.clean_row(text))


def _append_line(path: str, data: bytes) -> None:
    """Append to the file once it has room, which its reader makes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        full = time.monotonic() + _FULL_S
        while os.fstat(descriptor).st_size > _MAX_BYTES and time.monotonic() < full:
            time.sleep(0.1)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


class ProgressReader:
    """Reads the lines that were appended since the last call; an incomplete line waits.

    A file that has grown large is emptied once it was read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[ProgressUpdate]:
        """Return the new updates in order; an invalid line is left out."""
        try:
            with self._path.open("r+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                stream.seek(self._offset)
                data = stream.read()
                complete = data[: data.rfind(b"\n") + 1]
                self._offset += len(complete)
                if len(complete) == len(data) and self._offset > _MAX_BYTES // 2:
                    stream.truncate(0)
                    self._offset = 0
        except OSError:
            return []
        updates = []
        for line in complete.splitlines():
            try:
                updates.append(_parse_update(json.loads(line)))
            except (ValueError, TypeError, AttributeError, KeyError):
                continue
        return updates


def _parse_update(document: Mapping[str, Any]) -> ProgressUpdate:
    details = document.get("document")
    return ProgressUpdate(
        host=str(document["host"]),
        phase=str(document.get("phase") or "work"),
        line=str(document.get("line") or ""),
        done_bytes=_parse_int(document.get("done_bytes")),
        total_bytes=_parse_int(document.get("total_bytes")),
        rate_bytes_per_s=_parse_float(document.get("rate_bytes_per_s")),
        eta_s=_parse_float(document.get("eta_s")),
        entries=parse_entries(document.get("entries")),
        document=details if isinstance(details, Mapping) else None,
    )


def parse_entries(rows: object) -> tuple[LogEntry, ...]:
    """Read a machine's lines of a journal; a row without a time is left out."""
    entries = []
    for row in rows if isinstance(rows, list) else ():
        at = row.get("time_us") if isinstance(row, Mapping) else None
        if isinstance(at, int) and 0 <= at < _LATEST_US:
            priority = row.get("priority")
            known = priority if isinstance(priority, int) and 0 <= priority < 8 else None
            entries.append(LogEntry(at, str(row.get("unit")), str(row.get("message")), known))
    return tuple(entries)


def _parse_int(value: object) -> int | None:
    parsed = _parse_float(value)
    return None if parsed is None else int(parsed)


def _parse_float(value: object) -> float | None:
    """Return a number that a machine reports; None for one that nobody can compute with."""
    if not isinstance(value, int | float) or not -_MAX_NUMBER <= value <= _MAX_NUMBER:
        return None
    return float(value)


def format_amounts(update: ProgressUpdate) -> str:
    """Write bytes, share, rate and time left, if they are known."""
    parts = []
    if update.total_bytes:
        done = update.done_bytes or 0
        share = min(100, done * 100 // update.total_bytes)
        parts.append(f"{format_bytes(done)} of {format_bytes(update.total_bytes)} ({share} %)")
    if update.rate_bytes_per_s:
        parts.append(f"{format_bytes(update.rate_bytes_per_s)}/s")
    if update.eta_s is not None:
        parts.append(f"{format_duration(update.eta_s)} left")
    return ", ".join(parts)


def format_update(update: ProgressUpdate) -> str:
    """Write the whole update as one plain line."""
    text = " - ".join(part for part in (format_amounts(update), update.line) if part)
    return f"{update.host}: {update.phase}: {text}"
