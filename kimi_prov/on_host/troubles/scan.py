"""Find the lines of troubles in logs of any length, within bounded memory.

Most lines of a long log are alike but for their numbers. A line without its digits and its letters
a to f is a key; what is looked for in a line is decided once for each key, so that ten million
lines take seconds where each expression on each line would take days.

Decides: what `diagnose` recognises (how lines are searched).
Held by: tests/unit/on_host/troubles/test_trouble_scan.py.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from kimi_prov.contract.troubles import Trouble, find_literals
from kimi_prov.on_host.troubles.lines import MAX_LINE, LogLine, read_line

if TYPE_CHECKING:
    from collections.abc import Iterable

_VARYING = b"0123456789abcdef"
_MAX_KEYS = 100_000
# The first and the last lines of a trouble that are kept.
_KEPT = 6
# A harmless line is told once; so many are counted.
_MAX_HARMLESS = 50
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_AROUND = 5
# The GPUs of a machine, and more.
_MAX_NAMED = 64
_MAX_TEXT = 400
# An engine that answers again: its own words, those of our units, or a request that was answered.
_READY = (
    *("application startup complete", "fired up and ready to roll", "ready after "),
    "server is listening on http",
)
_ANSWERED = re.compile(rb"/v1/[a-z/]+ http/1\.[01]\W{1,3}200\b")
_READY_LITERALS = (*_READY, "/v1/")
_ERROR = re.compile(
    r"^(?:\S{1,60} ){0,6}?(?:ERROR|CRITICAL|FATAL|ALERT)\b"
    r"|\b[a-z_.]*[A-Z]\w*(?:Error|Exception)\b: |^(?:error|fatal|panic)\b"
    r"|\b(?:[Ff]atal|FATAL)(?: Python)? error\b|^E\d{4} |\berror: |\berror loading\b"
    r"|GGML_ASSERT\(|^(?:fatal|failed): \["
)
_ERROR_LITERALS = (
    *("error", "critical", "fatal", "alert", "exception", "panic"),
    *("ggml_assert", "failed: ["),
)
_NO_ERROR = re.compile(
    # A traceback's own lines: vLLM puts its ERROR before each of them.
    r"Traceback \(most recent|^(?:.*\] )?\s+File \"|\.py:\d+\]\s{3,}\S|\.py:\d+\]$"
    r"|\b(?:no|0|without) errors?\b"
    r"|errors?[=:] ?(?:0|None)\b"
)


@dataclass(frozen=True)
class Occurrence:
    """A line that was found: file, line from 1, text, and its place in time and in the logs."""

    source: str
    line: int
    text: str
    order: int
    time_s: float | None = None
    process: str = ""


@dataclass
class Hit:
    """What was found of a trouble: the first and last lines, how many, and what groups matched."""

    row: Trouble
    first: list[Occurrence] = field(default_factory=list)
    last: deque[Occurrence] = field(default_factory=lambda: deque(maxlen=_KEPT))
    count: int = 0
    values: dict[str, str] = field(default_factory=dict)
    named: set[tuple[str, str]] = field(default_factory=set)
    beside: list[Occurrence] = field(default_factory=list)

    def add(self, line: Occurrence, match: re.Match[str]) -> None:
        """Keep one more line."""
        self.count += 1
        for name, value in match.groupdict().items():
            if value:
                self.values.setdefault(name, value)
                if len(self.named) < _MAX_NAMED:
                    self.named.add((name, value))
        if len(self.first) < _KEPT:
            self.first.append(line)
        else:
            self.last.append(line)

    @property
    def occurrences(self) -> list[Occurrence]:
        """The lines that were kept, in order."""
        return [*self.first, *self.last]


@dataclass
class FirstError:
    """The first line that says "error" and that no row knows, with the lines around it."""

    line: Occurrence
    before: list[str]
    after: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Pattern:
    """An expression of a row, what it is there for, and what every match has in it."""

    row: int
    use: str
    text: str
    literals: tuple[str, ...]

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The expression, compiled when the first line asks for it."""
        return re.compile(self.text)


class Patterns:
    """The expressions of all rows, and what was decided for lines that are alike."""

    def __init__(self, rows: Iterable[Trouble]) -> None:
        self.rows = tuple(rows)
        patterns = [
            _Pattern(at, use, text, find_literals(text))
            for at, row in enumerate(self.rows)
            for use, texts in _list_expressions(row)
            for text in texts
        ]
        self._short = [
            ([_shorten(literal.encode()) for literal in one.literals], one) for one in patterns
        ]
        self._ready = [_shorten(text.encode()) for text in _READY_LITERALS]
        self._errors = [_shorten(text.encode()) for text in _ERROR_LITERALS]
        self._known: dict[bytes, tuple[tuple[_Pattern, ...], bool, bool]] = {}

    def find_candidates(self, low: bytes) -> tuple[tuple[_Pattern, ...], bool, bool]:
        """Return what may match a line in small letters: patterns, a ready line, an error."""
        key = _shorten(low)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            known = self._known[key] = (
                tuple(one for short, one in self._short if any(part in key for part in short)),
                any(short in key for short in self._ready),
                any(short in key for short in self._errors),
            )
        return known


class Scanner:
    """Takes the lines of logs one after the other, and keeps what rows recognise."""

    def __init__(self, patterns: Patterns) -> None:
        self.rows, self._patterns = patterns.rows, patterns
        self._markers: dict[tuple[int, str], int] = {}
        self._recent: dict[int, deque[int]] = {}
        self._before: deque[bytes] = deque(maxlen=_AROUND)
        self._source, self._line, self._order = "", 0, 0
        self.hits: dict[int, Hit] = {}
        self.met: dict[tuple[int, str], tuple[Occurrence, dict[str, str]]] = {}
        self.ready: dict[str, Occurrence] = {}
        self.first_error: FirstError | None = None

    def begin(self, source: str) -> None:
        """Begin another file."""
        self._source, self._line = source, 0
        self._markers.clear()
        self._recent.clear()
        self._before.clear()

    def read(self, raw: bytes) -> None:
        """Read one line; where a bar of progress wrote over it, each of its states."""
        self._line += 1
        for part in raw.rstrip(b"\r\n").split(b"\r") if b"\r" in raw else (raw,):
            self._read_part(part[:MAX_LINE])

    def _read_part(self, raw: bytes) -> None:
        self._order += 1
        # Colours may begin in the middle of what is looked for.
        raw = _COLOUR.sub(b"", raw) if b"\x1b" in raw else raw
        low = raw.lower()
        patterns, ready, error = self._patterns.find_candidates(low)
        error = error and self.first_error is None
        if patterns or error or ready:
            self._judge(raw, low, patterns, ready=ready, error=error)
        if self.first_error is None:
            self._before.append(raw)
        elif self._is_behind(self.first_error):
            self.first_error.after.append(_decode(raw).full_text[:_MAX_TEXT])

    def _is_behind(self, error: FirstError) -> bool:
        """Whether the present line belongs to the lines behind the first error."""
        new = error.line.order < self._order and error.line.source == self._source
        return new and len(error.after) < _AROUND

    def _judge(
        self, raw: bytes, low: bytes, patterns: tuple[_Pattern, ...], *, ready: bool, error: bool
    ) -> None:
        if ready and _ANSWERED.search(low):
            self._mark_ready()
            if not patterns:
                return
        text = low.decode("utf-8", "replace")
        candidates = [
            one
            for one in patterns
            if any(literal in text for literal in one.literals) and not self._is_tired(one)
        ]
        ready = ready and any(words in text for words in _READY)
        if not (candidates or ready or error):
            return
        line = _decode(raw)
        seen = [
            (one, match)
            for one in candidates
            if (match := one.expression.search(line.message)) is not None
        ]
        if any(self._is_accused(one) for one, _ in seen):
            seen = self._drop_ignored(seen, patterns, line.message)
        known = bool(seen)
        for one, match in seen:
            self._keep(one, match, line)
        if ready:
            self._mark_ready()
        if error and not known and _is_error(line.message):
            before = [_decode(one).full_text[:_MAX_TEXT] for one in self._before]
            self.first_error = FirstError(self._occurrence(line), before)

    def _is_accused(self, one: _Pattern) -> bool:
        return one.use == "match" and self.rows[one.row].kind != "harmless"

    def _drop_ignored(
        self,
        seen: list[tuple[_Pattern, re.Match[str]]],
        patterns: tuple[_Pattern, ...],
        message: str,
    ) -> list[tuple[_Pattern, re.Match[str]]]:
        """Leave troubles out that a line names only to say that it goes on without something.

        A harmless row with an effect is about a trouble's own lines, where they are few.
        """
        if any(
            self.rows[one.row].kind == "harmless"
            and self.rows[one.row].effect is None
            and one.use == "match"
            and one.expression.search(message)
            for one in patterns
        ):
            return [(one, match) for one, match in seen if not self._is_accused(one)]
        return seen

    def _is_tired(self, one: _Pattern) -> bool:
        """Whether enough of a harmless line, or of a line that must not stand, was seen."""
        hit = self.hits.get(one.row)
        if one.use == "match":
            return self.rows[one.row].kind == "harmless" and bool(
                hit and hit.count >= _MAX_HARMLESS
            )
        return one.use in ("also", "unless") and (one.row, one.text) in self.met

    def _keep(self, one: _Pattern, match: re.Match[str], line: LogLine) -> None:
        occurrence = self._occurrence(line)
        row = self.rows[one.row]
        if one.use in ("after", "not_after"):
            self._markers[one.row, one.use] = self._line
        elif one.use != "match":
            self.met.setdefault((one.row, one.text), (occurrence, match.groupdict()))
        elif self._stands_right(one.row, row) and (
            row.times <= 1 or self._is_repeated(one.row, row)
        ):
            self.hits.setdefault(one.row, Hit(row)).add(occurrence, match)

    def _stands_right(self, at: int, row: Trouble) -> bool:
        """Whether the line stands behind what it has to, and not behind what it may not."""
        behind = row.after is None or self._is_behind_marker(at, "after")
        return behind and not (row.not_after and self._is_behind_marker(at, "not_after"))

    def _is_behind_marker(self, at: int, use: str) -> bool:
        line = self._markers.get((at, use))
        return line is not None and self._line - line <= self.rows[at].within

    def _is_repeated(self, at: int, row: Trouble) -> bool:
        lines = self._recent.setdefault(at, deque(maxlen=row.times))
        lines.append(self._line)
        return len(lines) == row.times and lines[-1] - lines[0] <= row.within

    def _mark_ready(self) -> None:
        # What the line says is not needed, and a busy server has millions of them.
        self.ready[self._source] = self._occurrence(LogLine(""))

    def _occurrence(self, line: LogLine) -> Occurrence:
        text = line.full_text[:_MAX_TEXT]
        return Occurrence(self._source, self._line, text, self._order, line.time_s, line.process)

    def list_hits(self) -> list[Hit]:
        """Return the troubles whose every condition holds."""
        hits = []
        for at, hit in self.hits.items():
            beside = [self.met.get((at, text)) for text in hit.row.also]
            if None in beside or any((at, text) in self.met for text in hit.row.unless):
                continue
            for occurrence, values in filter(None, beside):
                hit.beside.append(occurrence)
                hit.values.update({k: v for k, v in values.items() if v and k not in hit.values})
            hits.append(hit)
        return hits


def _list_expressions(row: Trouble) -> list[tuple[str, tuple[str, ...]]]:
    after, not_after = (() if one is None else (one,) for one in (row.after, row.not_after))
    behind = [("after", after), ("not_after", not_after)]
    return [("match", row.match), *behind, ("also", row.also), ("unless", row.unless)]


def _shorten(text: bytes) -> bytes:
    return text.translate(None, _VARYING)


def _is_error(message: str) -> bool:
    return bool(_ERROR.search(message)) and not _NO_ERROR.search(message)


def _decode(raw: bytes) -> LogLine:
    return read_line(raw.decode("utf-8", "replace"))
