"""`logs`: the lines of our units in the journal, each with its time.

    logs --units A,B --lines N [--since SECONDS]        the last lines, the oldest first
    logs --units A,B --after CURSOR --wait SECONDS      what came since, waiting for the first

With `--no-routine` both leave out checks that were answered. Both answer with `entries` and the
`cursor` to go on from. An answer is limited in lines and in bytes: the first form leaves out the
oldest and says so in `cut`, the second leaves the rest for the next call. The machine's own secrets
are masked. A line is untrusted text, which is cleaned where it is shown.

Decides: the order and form of `logs` (how a journal is read).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import subprocess
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.local_secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.contract.documents.answers import JournalAnswer, JournalEntry

MAX_LINES = 20_000
# Of one answer, and of one line: an engine prints its settings in some thousand characters.
MAX_BYTES = 4 << 20
MAX_LINE_LENGTH = 8192
KERNEL = "kernel"
# Seconds after the first new line within which further lines go with it.
_GATHER_S = 0.2
_TIMEOUT_S = 60.0
_FIELDS = "MESSAGE,PRIORITY,_SYSTEMD_UNIT,UNIT,OBJECT_SYSTEMD_UNIT"
_READ = 1 << 16
# The answered checks of an engine and of the proxy, by the machine itself: one every two seconds.
_ROUTINE = re.compile(r'\bGET /(?:health|metrics)\b\S* (?:HTTP/[0-9.]+" )?200\b')
# Lines that are looked at for those that are no routine: half a day of an idle machine.
_MAX_SEEN = 30_000


def main(argv: list[str]) -> int:
    """Print one JSON object; raises HostError where the journal cannot be read."""
    parser = argparse.ArgumentParser(prog="logs")
    parser.add_argument("--units", required=True, help="names with commas between them")
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--since", type=float, help="seconds since 1970")
    parser.add_argument("--after", help="the cursor of an earlier answer")
    parser.add_argument("--no-routine", action="store_true", help="no answered checks")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the first line")
    options = parser.parse_args(argv)
    units = options.units.split(",")
    if options.after:
        found = read_after(units, options.after, options.wait, routine=not options.no_routine)
    else:
        routine = not options.no_routine
        found = read_last(units, options.lines, options.since, routine=routine)
    return answer(Secrets(Paths()).mask(found))


def read_last(
    units: Sequence[str],
    lines: int,
    since: float | None = None,
    most_bytes: int = MAX_BYTES,
    boot: bool = False,
    *,
    routine: bool = True,
) -> JournalAnswer:
    """Return the last lines of these units, or of the kernel, the oldest first.

    `since`: none older than this, in seconds since 1970. `boot`: none of an earlier start.
    `routine`: also checks that were answered.
    """
    wanted = min(lines, MAX_LINES)
    command = [*_build_command(units), "--reverse", f"--lines={wanted if routine else _MAX_SEEN}"]
    command += ["--boot"] if boot else []
    command += [f"--since=@{since:.0f}"] if since is not None else []
    entries: list[JournalEntry] = []
    left, cursor = most_bytes, ""
    cut = False
    for text in _read_lines(command, deadline=time.monotonic() + _TIMEOUT_S):
        row = _parse_row(text)
        if row is None:
            continue
        cursor = cursor or row["cursor"]
        entry = _format_entry(row)
        if not routine and _ROUTINE.search(entry["message"]):
            continue
        left -= len(text)
        if left < 0:
            cut = True
            break
        entries.append(entry)
        if len(entries) >= wanted:
            break
    cut = cut or (since is not None and len(entries) >= wanted)
    return {"entries": entries[::-1], "cursor": cursor or _find_newest_cursor(), "cut": cut}


def read_after(
    units: Sequence[str], cursor: str, wait_s: float, *, routine: bool = True
) -> JournalAnswer:
    """Return the lines after the cursor; wait at most `wait_s` seconds for the first line."""
    command = [*_build_command(units), "--follow", "--no-tail", f"--after-cursor={cursor}"]
    entries: list[JournalEntry] = []
    left = MAX_BYTES
    for text in _read_lines(command, deadline=time.monotonic() + wait_s, gather_s=_GATHER_S):
        row = _parse_row(text)
        if row is None:
            continue
        cursor = row["cursor"]
        entry = _format_entry(row)
        if not routine and _ROUTINE.search(entry["message"]):
            continue
        entries.append(entry)
        left -= len(text)
        if left < 0 or len(entries) >= MAX_LINES:
            break
    return {"entries": entries, "cursor": cursor, "cut": False}


def _build_command(units: Sequence[str]) -> list[str]:
    command = ["journalctl", "--no-pager", "--quiet", "--output=json", "--all"]
    command.append(f"--output-fields={_FIELDS}")
    if list(units) == [KERNEL]:
        return [*command, "--dmesg"]
    return [*command, *(f"--unit={name}" for name in units)]


def _find_newest_cursor() -> str:
    """Return the cursor of the journal's last line, whoever wrote it; empty without a journal."""
    read = ["journalctl", "--no-pager", "--quiet", "--output=json", "--output-fields=PRIORITY"]
    for text in _read_lines([*read, "--lines=1"], deadline=time.monotonic() + _TIMEOUT_S):
        row = _parse_row(text)
        if row is not None:
            return str(row["cursor"])
    return ""


def _read_lines(
    command: Sequence[str], *, deadline: float, gather_s: float | None = None
) -> Iterator[bytes]:
    """Yield a command's lines, until it ends, the deadline, or the reader is gone.

    `gather_s`: after the first line only what comes within so many seconds.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise HostError(f"journalctl cannot be run: {error.strerror}") from None
    assert process.stdout is not None  # noqa: S101  (it was asked for)
    pending = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                read = os.read(process.stdout.fileno(), _READ)
                if not read:
                    break
                *lines, pending = (pending + read).split(b"\n")
                yield from lines
                if lines and gather_s is not None:
                    deadline = min(deadline, time.monotonic() + gather_s)
                    gather_s = None
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _parse_row(text: bytes) -> dict[str, Any] | None:
    """Parse a line of journalctl's JSON; None for anything else."""
    try:
        row = json.loads(text)
        return {**row, "cursor": str(row["__CURSOR"]), "at": int(row["__REALTIME_TIMESTAMP"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _format_entry(row: dict[str, Any]) -> JournalEntry:
    """Return an entry's time in microseconds since 1970, its unit, priority and text."""
    names = [str(row.get(key) or "") for key in ("_SYSTEMD_UNIT", "UNIT", "OBJECT_SYSTEMD_UNIT")]
    ours = [name for name in names if unit_names.is_ours(name)]
    priority = str(row.get("PRIORITY", ""))
    return {
        "time_us": row["at"],
        "unit": ours[0] if ours else KERNEL if not any(names) else next(filter(None, names)),
        "priority": int(priority) if priority.isdigit() and len(priority) == 1 else None,
        "message": _format_message(row.get("MESSAGE")),
    }


def _format_message(value: Any) -> str:  # noqa: ANN401  (journalctl writes text, bytes as numbers, a list)
    """Return the text of an entry; text that is not UTF-8 comes as a list of bytes."""
    if isinstance(value, list):
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            value = bytes(value).decode("utf-8", "replace")
        else:
            value = " ".join(_format_message(item) for item in value)
    text = "" if value is None else str(value)
    over = len(text) - MAX_LINE_LENGTH
    return f"{text[:MAX_LINE_LENGTH]}... ({over} more characters)" if over > 0 else text
