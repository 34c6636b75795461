"""A line of a log without what stands before it: time, host, unit, colour, container.

Decides: what `diagnose` recognises (the forms of a log's lines).
Held by: tests/unit/on_host/troubles/test_trouble_lines.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Callable

from kimi_prov.contract import clean_text

# Longer lines are cut: an engine's arguments fit, an answer of a model does not.
MAX_LINE = 8192
_ESCAPE = re.compile("(?:\x1b\\[|\x9b)[0-9;:?]*[A-Za-z]")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# Days before each month; a leap day makes no order wrong.
_DAYS = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335]
# "[pod/NAME/CONTAINER] ", "NAME-1  | ", CRI's "stdout F ", a rank of srun.
_CONTAINER = re.compile(r"\[pod/[^\]\s]+\]\s+|[\w.-]+\s{1,40}\| |(?:stdout|stderr) [FP] ")
_RANK = re.compile(r"\s{0,4}\d{1,5}: (?=\D)")
_ISO = re.compile(
    r"(?P<open>\[)?\d{4}-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)?(?(open)\])\s+"
)
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d{1,6})? ")
_UNIT = re.compile(r"[\w.-]+ ([\w@.\\:/-]+?)(?:\[\d+\])?: ")
# After a time that containers have as well, only what is surely a unit.
_SURE_UNIT = re.compile(r"[\w.-]+ (kernel|[\w@.\\:/-]+(?=\[))(?:\[\d+\])?: ")
_DMESG = re.compile(
    r"(?:\w+ *:\w+ *: )?"
    r"\[(?: *\d+\.\d+|\w{3} (\w{3}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) \d{4})\] "
)
# The engines' own times, which stay part of the message.
_ENGINE = re.compile(r"\b(?:20\d\d-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")


@dataclass(frozen=True)
class LogLine:
    """A line's message, and the whole line as it can be shown.

    `time_s`: seconds since a year began, without a zone; None if unknown.
    """

    message: str
    full_text: str = ""
    process: str = ""
    time_s: float | None = None


def read_line(text: str) -> LogLine:
    """Split a line into message, process and time. Never raises."""
    text = _ESCAPE.sub("", text[:MAX_LINE]).rstrip()
    full_text = text
    if text.startswith("{"):
        unpacked = _unpack_json(text)
        if unpacked is not None:
            return unpacked
    time_s, process = None, ""
    for pattern, compute in _TIMES:
        text = _CONTAINER.sub("", text, count=1) if _CONTAINER.match(text) else text
        match = pattern.match(text)
        if match is not None:
            known_s = compute(match)
            time_s = time_s if known_s is None else known_s
            text = text[match.end() :]
            if pattern is _DMESG:
                process = "kernel"
            elif not process:
                unit = (_UNIT if pattern is _SYSLOG else _SURE_UNIT).match(text)
                if unit:
                    process, text = unit[1], text[unit.end() :]
    rank = _RANK.match(text)
    text = text[rank.end() :] if rank else text
    own = _ENGINE.search(text[:120]) if time_s is None else None
    if own is not None:
        time_s = _count_seconds(*(int(part) for part in own.groups()))
    return LogLine(clean_text.clean_row(text), clean_text.clean_row(full_text), process, time_s)


def _count_seconds(month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    if not 1 <= month <= len(_DAYS):
        return None
    return float((((_DAYS[month - 1] + day) * 24 + hour) * 60 + minute) * 60 + second)


def _read_iso(match: re.Match[str]) -> float | None:
    return _count_seconds(*map(int, match.groups()[1:]))


def _read_syslog(match: re.Match[str]) -> float | None:
    name, *rest = match.groups()
    return _count_seconds(_MONTHS.index(name) + 1, *map(int, rest)) if name in _MONTHS else None


def _read_dmesg(match: re.Match[str]) -> float | None:
    """Return the time; one that counts from the machine's start compares with no other file."""
    name, *rest = match.groups()
    return _count_seconds(_MONTHS.index(name) + 1, *map(int, rest)) if name in _MONTHS else None


_TIMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], float | None]], ...] = (
    (_ISO, _read_iso),
    (_SYSLOG, _read_syslog),
    (_DMESG, _read_dmesg),
)


def _unpack_json(text: str) -> LogLine | None:
    """Return the message of a line of Docker's own files or of `journalctl -o json`."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(row, dict) and isinstance(row.get("log"), str):
        return read_line(f"{row.get('time', '')} {row['log']}".lstrip().replace("{", " {", 1))
    if isinstance(row, dict) and isinstance(row.get("MESSAGE"), str):
        unit = str(row.get("_SYSTEMD_UNIT") or row.get("SYSLOG_IDENTIFIER") or "")
        message = clean_text.clean_row(row["MESSAGE"][:MAX_LINE])
        return LogLine(message, message, unit)
    return None
