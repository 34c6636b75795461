"""Documents that come from elsewhere: read within bounds, and parsed within bounds.

A vendor's sheet, facts, an overlay's rows or a file of variables may be anything: a pipe that
nobody writes into, a device without an end, a nest that no parser survives. Every one of them
passes here; what is wrong is a UserError that names the file, and the line or the key.

Decides: limits of what is read from elsewhere: size, depth, pipes, numbers.
Held by: tests/unit/test_outside_documents.py, tests/component/test_outside_streams.py,
  tests/unit/test_fuzz.py.
"""

from __future__ import annotations

import json
import math
import os
import select
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = tuple[str | int, ...]
# Far above what any document of ours holds, and far below what a parser or a report suffers from.
MAX_NODES = 100_000
_MAX_DEPTH = 100
_MAX_NUMBER_LENGTH = 100
_MAX_TAGS = 100
# Bytes, bytes a second, operations a second: nothing that is sold comes near, and what is computed
# from it stays a number.
_MAX_NUMBER = float(1 << 63)
STANDARD_INPUT = Path("-")
_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_MAX_GZIP_MEMBERS = 100
# A file on the disk delivers at once. What a shell joined to us may have to compute first.
_READ_TIMEOUT_S = 1.5
_PROGRAM_TIMEOUT_S = 60.0
_FROM_A_PROGRAM = ("/dev/fd", "/dev/stdin", "/proc/self/fd")
# What PyYAML lets through beside its own errors, for values that its tags do not fit.
_ODD = (ValueError, OverflowError, TypeError, AttributeError, LookupError)
FAULTS = (yaml.YAMLError, RecursionError, *_ODD)


@dataclass(frozen=True)
class Document:
    """The text of a document, and what messages call it."""

    name: str
    text: str

    def yaml(self, fix: str, *, ours: bool = False) -> Any:  # noqa: ANN401  (it is judged next)
        """Parse it as YAML, or as JSON, which is a kind of it. Raises UserError.

        What is `ours` comes with the code: the time that its bounds take is saved.
        """
        try:
            if ours:
                return _parse(self.text)
            check_yaml(self.text)
            value = _parse(self.text)
        except FAULTS as error:
            raise make_yaml_error(self.name, error, fix) from None
        return self._sound(value, fix, lines=True)

    def json(self, fix: str, *, most: int = MAX_NODES) -> Any:  # noqa: ANN401
        """Parse it as JSON of at most so many values. Raises UserError."""
        try:
            value = json.loads(self.text)
        except json.JSONDecodeError as error:
            raise UserError(f"{self.name}:{error.lineno}: not JSON: {error.msg}", fix=fix) from None
        except RecursionError:
            raise UserError(f"{self.name}: {_describe_depth()}", fix=fix) from None
        except ValueError:  # Python's own limit
            raise UserError(f"{self.name}: a number has too many digits", fix=fix) from None

        return self._sound(value, fix, lines=False, most=most)

    def _sound(
        self,
        value: Any,  # noqa: ANN401
        fix: str,
        *,
        lines: bool,
        most: int = MAX_NODES,
    ) -> Any:  # noqa: ANN401
        fault = _find_unsound(value, most)
        if fault is None:
            return value
        path, problem = fault
        line = find_line(self.text, path) if lines else None
        where = f"{self.name}:{line}" if line else self.name
        key = f"{format_path(path)}: " if path else ""
        raise UserError(f"{where}: {key}{problem}", fix=fix)


def read_document(path: Path, *, what: str, limit: int, fix: str) -> Document:
    """Read a text in UTF-8, compressed by gzip or not, from a file, a pipe, or `-`.

    `what` it is ("a spec sheet") and `limit`, the most bytes of its text, stand in messages. Raises
    UserError for what is no such text, and for what does not deliver.
    """
    name = format_path_name(path)
    content = read_bytes(path, what=what, limit=limit, fix=fix)
    try:
        return Document(name, content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{name}: not UTF-8 text", fix=fix) from None


def read_bytes(path: Path, *, what: str, limit: int, fix: str) -> bytes:
    """Read content within `limit` bytes, unpacked where gzip packed it; as `read` does."""
    name, is_stdin = format_path_name(path), path == STANDARD_INPUT
    try:
        descriptor = os.dup(0) if is_stdin else _open_path(path)
        try:
            _check_mode(os.fstat(descriptor).st_mode, terminal=is_stdin and os.isatty(descriptor))
            content = b"".join(_read_chunks(descriptor, path, limit))
        finally:
            os.close(descriptor)
        if content.startswith(_GZIP):
            content = _unpack(content, limit)
    except (_RefusedError, OSError, ValueError, zlib.error) as error:
        # ValueError: the name holds a null character.
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{name}: cannot be read: {reason}", fix=fix) from None
    if len(content) > limit:
        raise UserError(f"{name}: larger than {what} can be: over {limit >> 20} MiB", fix=fix)
    return content


def format_path_name(path: Path) -> str:
    """Return what messages call a path."""
    return "standard input" if path == STANDARD_INPUT else str(path)


class _RefusedError(Exception):
    """Why nothing is read."""


def _open_path(path: Path) -> int:
    # Judged before it is opened as well: opening alone makes some devices act.
    _check_mode(path.stat().st_mode)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _check_mode(mode: int, *, terminal: bool = False) -> None:
    """Refuse what is neither a file nor a pipe nor the `terminal` that a person types into."""
    if stat.S_ISDIR(mode):
        raise _RefusedError("this is a folder; wanted a file")
    if stat.S_ISSOCK(mode):
        raise _RefusedError("this is a socket; wanted a file")
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not terminal):
        raise _RefusedError("this is a device; wanted a file")


def _read_chunks(descriptor: int, path: Path, limit: int) -> Iterator[bytes]:
    """Yield what comes, to its end or until it is more than `limit` bytes."""
    patience_s: float | None = _READ_TIMEOUT_S
    if path == STANDARD_INPUT or any(path.is_relative_to(name) for name in _FROM_A_PROGRAM):
        patience_s = None if os.isatty(descriptor) else _PROGRAM_TIMEOUT_S
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    size = 0
    while size <= limit:
        # Of a pipe without a writer this is the only sign: reading it ends at once, or never.
        if not poller.poll(None if patience_s is None else patience_s * 1000):
            raise _RefusedError(f"nothing came out of this pipe within {patience_s:g} s")
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        size += len(chunk)
        yield chunk


def _unpack(content: bytes, limit: int) -> bytes:
    """Unpack up to a byte more than `limit`."""
    parts: list[bytes] = []
    room = limit + 1
    for _ in range(_MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        parts.append(member.decompress(content, room))
        room -= len(parts[-1])
        if room <= 0:
            break
        if not member.eof:
            raise _RefusedError("its gzip is cut off")
        content = member.unused_data
        if not content.startswith(_GZIP):
            break
    else:
        raise _RefusedError(f"its gzip has more than {_MAX_GZIP_MEMBERS} parts")
    return b"".join(parts)


def _choose_loader() -> Any:  # noqa: ANN401  (a class that PyYAML made, or did not)
    """Return PyYAML's safe loader, in C where it was built: ten times as fast.

    Values that its tags do not fit are errors with a line, and no number has digits without end:
    60:60:60:... takes time by their square.
    """
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    for kind in ("int", "float", "timestamp", "bool", "binary"):
        tag = f"tag:yaml.org,2002:{kind}"
        loader.add_constructor(tag, _make_strict(base.yaml_constructors[tag], kind))
    return loader


def _make_strict(construct: Any, kind: str) -> Any:  # noqa: ANN401
    def construct_strictly(loader: Any, node: Any) -> Any:  # noqa: ANN401
        if kind in ("int", "float") and len(node.value) > _MAX_NUMBER_LENGTH:
            raise yaml.constructor.ConstructorError(
                problem="a number has too many digits", problem_mark=node.start_mark
            )
        try:
            return construct(loader, node)
        except _ODD:
            raise yaml.constructor.ConstructorError(
                problem=f"this is no {kind}", problem_mark=node.start_mark
            ) from None

    return construct_strictly


_LOADER = _choose_loader()


def _parse(text: str) -> Any:  # noqa: ANN401
    """Parse a text of our own, or one that `check_yaml` let pass. Raises one of FAULTS."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506


def check_yaml(text: str) -> yaml.NodeEvent | None:
    """Walk through YAML without building anything; return its root's event, None for none.

    Raises yaml.YAMLError for what is no YAML, is nested too deep, or is too much once its aliases
    are written out: what builds nodes calls itself for each level, in C until the stack ends.
    """
    if text.count("%TAG") > _MAX_TAGS:
        # libyaml holds each against all before it.
        raise yaml.MarkedYAMLError(problem=f"more than {_MAX_TAGS} %TAG directives")
    walk = _Walk()
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            walk.close()
        elif isinstance(event, yaml.NodeEvent):
            walk.root = walk.root or event
            walk.node(event)
    return walk.root


@dataclass
class _Open:
    """A collection whose end has not come: nodes before it, and levels in it so far."""

    anchor: str | None
    before: int
    levels: int = 0


class _Walk:
    """Counts the nodes and levels that a text of YAML stands for."""

    def __init__(self) -> None:
        self.root: yaml.NodeEvent | None = None
        self._nodes = 0
        self._open = [_Open(None, 0)]
        self._known: dict[str, tuple[int, int]] = {}

    def node(self, event: yaml.NodeEvent) -> None:
        nodes, levels = 1, 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._known:
                raise _make_fault(f"nothing before it is called {event.anchor!r:.60}", event)
            nodes, levels = self._known[event.anchor]
            self._open[-1].levels = max(self._open[-1].levels, levels)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append(_Open(event.anchor, self._nodes))
            if event.anchor is not None:
                self._known.pop(event.anchor, None)  # what holds itself has no end
        elif event.anchor is not None:
            self._known[event.anchor] = nodes, levels
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _make_fault(_describe_size(MAX_NODES), event)
        if len(self._open) - 1 + levels > _MAX_DEPTH:
            raise _make_fault(_describe_depth(), event)

    def close(self) -> None:
        closed = self._open.pop()
        levels = closed.levels + 1
        if closed.anchor is not None:
            self._known[closed.anchor] = self._nodes - closed.before, levels
        self._open[-1].levels = max(self._open[-1].levels, levels)


def _make_fault(problem: str, event: Any) -> yaml.YAMLError:  # noqa: ANN401  (its mark is C's own)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _describe_depth() -> str:
    return f"nested deeper than {_MAX_DEPTH} levels"


def _describe_size(most: int) -> str:
    return f"more than {most} values"


def make_yaml_error(where: str, error: Exception, fix: str) -> UserError:
    """Say of what `parse` raised where it is and what is wrong."""
    mark = getattr(error, "problem_mark", None)
    location = f"{where}:{mark.line + 1}" if mark else where
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    return UserError(f"{location}: not YAML: {problem.splitlines()[0][:100]}", fix=fix)


def find_odd_number(value: object) -> Key | None:
    """Return where a parsed document has a number that is none, or too large to compute with.

    JSON of Python's own writing has such numbers: a machine may send them in any key.
    """
    waiting: list[tuple[Any, _Step | None]] = [(value, None)]
    while waiting:
        part, step = waiting.pop()
        # Not-a-number is within no bounds.
        if isinstance(part, (int, float)) and not -_MAX_NUMBER <= part <= _MAX_NUMBER:
            return step.path() if step else ()
        if isinstance(part, Mapping):
            waiting += [(inner, _Step(step, key)) for key, inner in part.items()]
        elif isinstance(part, (list, tuple)):
            waiting += [(inner, _Step(step, at)) for at, inner in enumerate(part)]
    return None


def _find_unsound(value: Any, most: int) -> tuple[Key, str] | None:  # noqa: ANN401
    """Return where in a parsed document something stands that no reader survives, and what it is.

    Nests, numbers that are none or too large to compute with, and halves of characters, which
    JSON can name and nobody can print.
    """
    count = 0
    waiting: list[tuple[Any, _Step | None]] = [(value, None)]
    while waiting:
        part, step = waiting.pop()
        count += 1
        problem = _find_problem(part, step) if count <= most else _describe_size(most)
        if problem is not None:
            return (() if step is None else step.path()), problem
        if isinstance(part, dict):
            waiting += [(inner, _Step(step, key)) for key, inner in part.items()]
        elif isinstance(part, (list, tuple)):
            waiting += [(inner, _Step(step, at)) for at, inner in enumerate(part)]
    return None


class _Step:
    """A key, and the step that led to what it is a key of."""

    __slots__ = ("before", "depth", "key")

    def __init__(self, before: _Step | None, key: object) -> None:
        self.before = before
        self.key = key
        self.depth: int = before.depth + 1 if before else 1

    def path(self) -> Key:
        keys: list[str | int] = []
        step: _Step | None = self
        while step is not None:
            keys.append(step.key if isinstance(step.key, (str, int)) else str(step.key))
            step = step.before
        # Of a nest without end the way in says enough, and half a character cannot be printed.
        return tuple(_make_printable(key) for key in keys[:-9:-1])


def _make_printable(key: str | int) -> str | int:
    return key.encode("utf-8", "replace").decode()[:60] if isinstance(key, str) else key


def _find_problem(part: object, step: _Step | None) -> str | None:
    if step is not None:
        if step.depth > _MAX_DEPTH:
            return _describe_depth()
        if _has_surrogates(step.key):
            return "not UTF-8: half a character"
    if isinstance(part, (int, float)):
        return None if abs(part) <= _MAX_NUMBER else _describe_bad_number(part)
    return "not UTF-8: half a character" if _has_surrogates(part) else None


def _describe_bad_number(part: float) -> str:
    if isinstance(part, float) and not math.isfinite(part):
        return f"wanted a number, found {part}"
    return "a number larger than 2^63"


def _has_surrogates(text: object) -> bool:
    if not isinstance(text, str) or text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def format_path(path: Key) -> str:
    """Write a path as people do, on one line whatever its keys are: cpus[3].tdp_w."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return clean_text.clean_line(text)


class SourceText:
    """The parts of a text of YAML: where each of them stands, and how it is spelled there.

    What cannot be parsed has no parts.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _root(self) -> Any:  # noqa: ANN401
        try:
            return yaml.compose(self._text, Loader=_LOADER)
        except FAULTS:
            return None

    def line(self, path: Key) -> int | None:
        """Return the line, from 1, of what `path` leads to, or of what is nearest above it."""
        node, line = self._root, None
        if node is not None:
            line = node.start_mark.line + 1
        for step in path:
            child = _find_child(node, step)
            if child is None:
                break
            node, line = child
        return line

    def spelling(self, path: Key) -> str | None:
        """Return a single value as the text has it; None where `path` leads to none."""
        node = self._root
        for step in path:
            child = _find_child(node, step)
            if child is None:
                return None
            node, _ = child
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def repeated(self) -> Iterator[Key]:
        """Yield what leads to each key that its mapping has twice: a parser keeps the last."""
        seen: set[int] = set()
        waiting: list[tuple[Any, Key]] = [(self._root, ())]
        while waiting:
            node, path = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [(part, (*path, at)) for at, part in enumerate(node.value)]
            elif isinstance(node, yaml.MappingNode):
                named = [(key.value, part) for key, part in node.value if _is_name(key)]
                keys: set[str] = set()
                for name, part in named:
                    if name in keys:
                        yield (*path, name)
                    keys.add(name)
                    waiting.append((part, (*path, name)))


def _is_name(node: Any) -> bool:  # noqa: ANN401
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str"


def find_line(text: str, path: Key) -> int | None:
    """Return the line of one part of a text; see `Written.line`."""
    return SourceText(text).line(path)


def _find_child(node: Any, step: str | int) -> tuple[Any, int] | None:  # noqa: ANN401
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None
