"""Reads the catalogue's files, lays a site's rows over ours, and refuses what is not whole.

Files are parsed once, fast; only a fault makes a second pass that finds its line.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from kimi_prov.catalog.names import nearest, shown
from kimi_prov.errors import ExitCode, UserError

HERE = Path(__file__).resolve().parent
_T = TypeVar("_T")
# The same loader in C where PyYAML was built with it: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What PyYAML lets through beside its own errors, for dates, numbers and nests that cannot be.
FAULTS = (yaml.YAMLError, ValueError, OverflowError, RecursionError, TypeError, AttributeError)
_REQUIRED_OF_OVERLAY = ("source", "confidence")
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where something stands: a file, and the keys and numbers that lead to it."""

    file: Path
    path: Key

    def down(self, *steps: str | int) -> Place:
        """Return a place inside this one."""
        return Place(self.file, (*self.path, *steps))


class FaultError(Exception):
    """A value that does not fit, and where it stands."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(problem)
        self.place = place
        self.problem = problem


def parse(text: str) -> Any:  # noqa: ANN401  (it is judged next)
    """Parse YAML (or JSON, which is a kind of it). Raises one of FAULTS."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506


def not_yaml(file: Path, error: Exception, fix: str) -> UserError:
    """Say of what `parse` raised where it is and what is wrong."""
    mark = getattr(error, "problem_mark", None)
    where = f"{file}:{mark.line + 1}" if mark else str(file)
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    return UserError(f"{where}: not YAML: {problem.splitlines()[0][:100]}", fix=fix)


def line_of(text: str, path: Key) -> int | None:
    """Return the line, from 1, of what `path` leads to, or of what is nearest above it."""
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except FAULTS:
        return None
    line = None if node is None else node.start_mark.line + 1
    for step in path:
        found = _child(node, step)
        if found is None:
            break
        node, line = found
    return line


def _child(node: Any, step: str | int) -> tuple[Any, int] | None:  # noqa: ANN401
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None


def spelled(path: Key) -> str:
    """Write a path as people do: cpus[3].tdp_w."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


class Files:
    """The catalogue's files, and those of a site's overlay where there is one."""

    def __init__(self, overlay: Path | None) -> None:
        self.overlay = overlay
        if overlay is not None and not overlay.is_dir():
            raise UserError(
                f"{overlay}: no such directory of catalogue rows",
                fix="name a directory with files such as gpus.yaml, or unset KIMI_PROV_CATALOG",
            )

    def rows(self, file: str, section: str, kind: type[_T], key: tuple[str, ...]) -> tuple[_T, ...]:
        """Return a section's rows as records, the site's laid over ours by their key fields."""
        try:
            merged = self._merged(file, section, key)
            return tuple(
                make(kind, self._expanded(file, row, places), places) for row, places in merged
            )
        except FaultError as fault:
            raise self._error(fault) from None

    def _merged(
        self, file: str, section: str, key: tuple[str, ...]
    ) -> list[tuple[dict[str, Any], Places]]:
        found: dict[tuple[Any, ...], tuple[dict[str, Any], Places]] = {}
        for path in self._paths(file):
            ours = path.parent == HERE
            for number, row in enumerate(_section(path, section)):
                place = Place(path, (section, number))
                if not isinstance(row, dict) or not all(isinstance(k, str) for k in row):
                    raise FaultError(place, "wanted a row of `key: value`")
                identity = tuple(row.get(name) for name in key)
                missing = [name for name in key[:1] if not isinstance(row.get(name), str)]
                if not ours:
                    missing += [name for name in _REQUIRED_OF_OVERLAY if name not in row]
                if missing:
                    raise FaultError(place, f"key {missing[0]!r} is missing")
                if any(isinstance(part, (dict, list)) for part in identity):
                    raise FaultError(place, f"{' and '.join(key)} name the row: wanted plain text")
                before, places = found.get(identity, ({}, Places(place, {})))
                if ours and before:
                    raise FaultError(place, f"{shown(identity[0])} is there twice")
                where = {**places.keys, **dict.fromkeys(row, place)}
                found[identity] = ({**before, **row}, Places(place, where))
        return list(found.values())

    def _expanded(self, file: str, row: dict[str, Any], places: Places) -> dict[str, Any]:
        """Put shared values, named in a row, in the name's place."""
        for key, section in _SHARED.get(file, {}).items():
            name = row.get(key)
            if isinstance(name, str):
                known = self._shared(file, section)
                if name not in known:
                    near = nearest(name, known)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    problem = f"no such name among {section}: {shown(name)}{hint}"
                    raise FaultError(places.of(key), problem)
                row = {**row, key: known[name]}
        return row

    def _shared(self, file: str, section: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in self._paths(file):
            part = _document(path).get(section) or {}
            if not isinstance(part, dict):
                raise FaultError(Place(path, (section,)), "wanted `name: values`")
            found.update(part)
        return found

    def _paths(self, file: str) -> list[Path]:
        paths = [HERE / f"{file}.yaml"]
        if self.overlay is not None and (self.overlay / f"{file}.yaml").exists():
            paths.append(self.overlay / f"{file}.yaml")
        return paths

    def _error(self, fault: FaultError) -> UserError:
        file, path = fault.place.file, fault.place.path
        ours = file.parent == HERE
        line = line_of(_text(file), path)
        where = f"{file.name if ours else file}" + (f":{line}" if line else "")
        return UserError(
            f"the catalogue is broken: {where}: {spelled(path)}: {fault.problem}",
            fix="reinstall kimi-prov, or correct that row" if ours else f"correct {file}",
            exit_code=ExitCode.FAILED if ours else ExitCode.BAD_INPUT,
        )


# Values that rows may name instead of writing them out: key of the row, section of the file.
_SHARED = {"models": {"architecture": "architectures"}, "cpus": {"isa": "isa_sets"}}


@dataclass(frozen=True)
class Places:
    """Where a row stands, and where each of its keys does: an overlay's stand elsewhere."""

    row: Place
    keys: dict[str, Place]

    def of(self, key: str) -> Place:
        """Return the place of one key."""
        return self.keys[key].down(key) if key in self.keys else self.row


def _document(path: Path) -> dict[str, Any]:
    document = _parsed(path, path.stat().st_mtime_ns)
    if not isinstance(document, dict):
        raise FaultError(Place(path, ()), "wanted a mapping")
    return document


@cache
def _parsed(path: Path, _changed: int) -> Any:  # noqa: ANN401
    text = _text(path)
    try:
        return parse(text)
    except FAULTS as error:
        raise not_yaml(path, error, f"correct {path}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(f"{path}: cannot be read: {reason}", fix=f"correct {path}") from None


def _section(path: Path, section: str) -> list[Any]:
    document = _document(path)
    rows = document.get(section)
    if rows is None and path.parent != HERE:
        return []
    if not isinstance(rows, list):
        raise FaultError(Place(path, (section,)), "wanted a list of rows")
    return rows


def make(kind: type[_T], row: Any, places: Places) -> _T:  # noqa: ANN401
    """Build a row's record. Raises FaultError for a key or a value that does not fit."""
    if not isinstance(row, dict):
        raise FaultError(places.row, f"wanted a mapping, found {shown(row)}")
    known = _hints(cast("Any", kind))
    for key in row:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise FaultError(places.of(str(key)), f"unknown key {shown(key)}{hint}")
    values = {key: _value(value, known[key], places.of(key)) for key, value in row.items()}
    try:
        return kind(**values)
    except TypeError as error:
        text = str(error)
        missing = text.split(": ", 1)[-1] if "missing" in text else text
        raise FaultError(places.row, f"missing {missing}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401  (a dataclass)
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


_PLAIN = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def _value(value: Any, kind: Any, place: Place) -> Any:  # noqa: ANN401
    """Return the value as a record holds it: lists as tuples, mappings as records."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        some = next(a for a in arguments if a is not type(None))
        return None if value is None else _value(value, some, place)
    if origin is Annotated:
        base, form = arguments
        if not form.pattern.fullmatch(_value(value, base, place)):
            raise FaultError(place, f"wanted {form.words}, found {shown(value)}")
        return value
    if origin is tuple:
        wanted = _typed(value, list, place)
        return tuple(_value(v, arguments[0], place.down(n)) for n, v in enumerate(wanted))
    if origin is dict:
        pairs = _typed(value, dict, place)
        return {str(k): _value(v, arguments[1], place.down(str(k))) for k, v in pairs.items()}
    if is_dataclass(kind):
        keys = _typed(value, dict, place)
        return make(cast("type[Any]", kind), value, Places(place, dict.fromkeys(keys, place)))
    if origin is Literal:
        if value not in arguments:
            choices = ", ".join(str(a) for a in arguments)
            raise FaultError(place, f"wanted one of {choices}, found {shown(value)}")
    elif not _is(value, kind):
        raise FaultError(place, f"wanted {_PLAIN[kind]}, found {shown(value)}")
    return value


def _typed(value: Any, kind: type[_T], place: Place) -> _T:  # noqa: ANN401
    if not isinstance(value, kind):
        name = "a list" if kind is list else "a mapping"
        raise FaultError(place, f"wanted {name}, found {shown(value)}")
    return value


def _is(value: Any, kind: type[Any]) -> bool:  # noqa: ANN401
    if kind is float:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
