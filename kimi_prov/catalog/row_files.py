"""Read the catalogue's files, put a site's rows over ours, and refuse invalid rows.

Files are parsed once, fast. Only a fault makes a second pass, which finds its line.
"""

from __future__ import annotations

import datetime
import math
import os
import types
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
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

from kimi_prov import documents
from kimi_prov.catalog.names import find_nearest, format_value
from kimi_prov.documents import Document, Key, find_line, format_path
from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

HERE = Path(__file__).resolve().parent
_T = TypeVar("_T")
# The folder of the rows of troubles, one file a product.
TROUBLES = "troubles"
_REQUIRED_OF_OVERLAY = ("source", "confidence")
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Location:
    """The location of a value: a file, and the path of keys and numbers in it."""

    file: Path
    path: Key

    def down(self, *steps: str | int) -> Location:
        """Return a location inside this one."""
        return Location(self.file, (*self.path, *steps))


class FaultError(Exception):
    """A value that does not fit, and its location."""

    def __init__(self, location: Location, problem: str) -> None:
        super().__init__(problem)
        self.place = location
        self.problem = problem


class Files:
    """The catalogue's files, and those of a site's overlay, if there is one."""

    def __init__(self, overlay: Path | None) -> None:
        self.overlay = overlay
        self._known: dict[tuple[str, str], dict[str, tuple[Any, Location]]] = {}
        self._theirs = frozenset() if overlay is None else _list_overlay_names(overlay)

    def rows(self, file: str, section: str, kind: type[_T], key: tuple[str, ...]) -> tuple[_T, ...]:
        """Return a section's rows as records; the site's rows replace ours by their key fields."""
        try:
            merged = self._merged(file, section, key)
            return tuple(
                make_record(kind, *self._expanded(file, row, places)) for row, places in merged
            )
        except FaultError as fault:
            raise self._error(fault) from None

    def rows_of_folder(self, folder: str, kind: type[_T], key: str) -> tuple[_T, ...]:
        """Return the rows of every file in a folder; the site's rows replace ours by their key.

        Each file is a list of whole rows.
        """
        known: dict[str, _T] = {}
        folders = [HERE / folder, *([self.overlay / folder] if self.overlay else [])]
        paths = [path for one in folders for path in sorted(one.glob("*.yaml"))]
        try:
            for path in paths:
                known.update(dict(_make_records(path, kind, key, known)))
        except FaultError as fault:
            raise self._error(fault) from None
        return tuple(known.values())

    def _merged(
        self, file: str, section: str, key: tuple[str, ...]
    ) -> list[tuple[dict[str, Any], RowLocations]]:
        merged: dict[tuple[Any, ...], tuple[dict[str, Any], RowLocations]] = {}
        for path in self._paths(file):
            ours = path.parent == HERE
            document, day = _read_document(path), Location(path, ("checked",))
            for index, row in enumerate(_read_section(path, section)):
                location = Location(path, (section, index))
                if not isinstance(row, dict) or not all(isinstance(k, str) for k in row):
                    raise FaultError(location, "wanted a row of `key: value`")
                identity = tuple(row.get(name) for name in key)
                missing = [name for name in key[:1] if not isinstance(row.get(name), str)]
                if not ours:
                    missing += [name for name in _REQUIRED_OF_OVERLAY if name not in row]
                if missing:
                    raise FaultError(location, f"key {missing[0]!r} is missing")
                if any(isinstance(part, (dict, list)) for part in identity):
                    raise FaultError(
                        location, f"{' and '.join(key)} name the row: wanted plain text"
                    )
                before, places = merged.get(identity, ({}, RowLocations(location, {})))
                if ours and before:
                    raise FaultError(location, f"{format_value(identity[0])} is there twice")
                where = {**places.keys, **{name: location.down(name) for name in row}}
                # A row that a site changed was not checked on the day of ours.
                checked = {"checked": document.get("checked")}
                where["checked"] = location.down("checked") if "checked" in row else day
                merged[identity] = ({**before, **checked, **row}, RowLocations(location, where))
        return list(merged.values())

    def _expanded(
        self, file: str, row: dict[str, Any], places: RowLocations
    ) -> tuple[dict[str, Any], RowLocations]:
        """Replace names in a row by the shared values that they stand for."""
        for key, section in _SHARED.get(file, {}).items():
            name = row.get(key)
            if isinstance(name, str):
                known = self._shared(file, section)
                if name not in known:
                    near = find_nearest(name, known)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    problem = f"no such name among {section}: {format_value(name)}{hint}"
                    raise FaultError(places.locate(key), problem)
                value, location = known[name]
                row = {**row, key: value}
                places = RowLocations(places.row, {**places.keys, key: location})
        return row, places

    def _shared(self, file: str, section: str) -> dict[str, tuple[Any, Location]]:
        if (file, section) in self._known:
            return self._known[file, section]
        shared: dict[str, tuple[Any, Location]] = {}
        for path in self._paths(file):
            part = _read_document(path).get(section) or {}
            if not isinstance(part, dict):
                raise FaultError(Location(path, (section,)), "wanted `name: values`")
            shared.update(
                {name: (part[name], Location(path, (section, str(name)))) for name in part}
            )
        self._known[file, section] = shared
        return shared

    def _paths(self, file: str) -> list[Path]:
        paths = [HERE / f"{file}.yaml"]
        if self.overlay is not None and f"{file}.yaml" in self._theirs:
            paths.append(self.overlay / f"{file}.yaml")
        return paths

    def _error(self, fault: FaultError) -> UserError:
        file, path = fault.place.file, fault.place.path
        ours = HERE in file.parents
        line = find_line(_read_file(file).text, path)
        where = f"{file.name if ours else file}" + (f":{line}" if line else "")
        key = f"{format_path(path)}: " if path else ""
        if ours:
            return UserError(
                f"the catalogue is broken: {where}: {key}{fault.problem}",
                fix="reinstall kimi-prov, or correct that row",
                exit_code=ExitCode.FAILED,
            )
        return UserError(
            f"{where}: {key}{fault.problem} (a site's own catalogue)", fix=f"correct {file}"
        )


def _list_overlay_names(overlay: Path) -> frozenset[str]:
    """Return the files in a site's directory. Raises UserError for one without files of rows."""
    fix = "name a directory with files such as gpus.yaml, or unset KIMI_PROV_CATALOG"
    if not os.path.isdir(overlay):  # noqa: PTH112  (this one never raises)
        raise UserError(f"{overlay}: no such directory of catalogue rows", fix=fix)
    try:
        names = frozenset(entry.name for entry in overlay.iterdir())
    except OSError as error:
        raise UserError(f"{overlay}: cannot be read: {error.strerror}", fix=fix) from None
    known = sorted(file.name for file in (*HERE.glob("*.yaml"), HERE / TROUBLES))
    if not names & set(known):
        raise UserError(
            f"{overlay}: no file of catalogue rows lies there; wanted some of {', '.join(known)}",
            fix=fix,
        )
    return names


# Values that rows may refer to by name: key of the row, section of the file.
_SHARED = {"models": {"architecture": "architectures"}, "cpus": {"isa": "isa_sets"}}


@dataclass(frozen=True)
class RowLocations:
    """The location of a row and of each of its keys, which may be in an overlay."""

    row: Location
    keys: dict[str, Location]

    def locate(self, key: str) -> Location:
        """Return the location of one key."""
        return self.keys.get(key, self.row)


def _read_document(path: Path) -> dict[str, Any]:
    document = _parse_file(path, _read_change_time(path))
    if not isinstance(document, dict):
        raise FaultError(Location(path, ()), "wanted a mapping")
    return document


def _read_change_time(path: Path) -> int:
    """Return when a file was changed; a broken link is refused when the file is read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@cache
def _parse_file(path: Path, _changed: int) -> Any:  # noqa: ANN401
    return _read_file(path).yaml(_suggest_fix(path), ours=HERE in path.parents)


def _read_file(path: Path) -> Document:
    return documents.read_document(
        path, what="a file of catalogue rows", limit=_MAX_BYTES, fix=_suggest_fix(path)
    )


def _suggest_fix(path: Path) -> str:
    return f"correct {path}"


def _make_records(
    path: Path, kind: type[_T], key: str, known: Container[str]
) -> Iterator[tuple[str, _T]]:
    rows = _parse_file(path, _read_change_time(path))
    if not isinstance(rows, list):
        raise FaultError(Location(path, ()), "wanted a list of rows")
    for index, row in enumerate(rows):
        location = Location(path, (index,))
        keys = row if isinstance(row, dict) else {}
        places = RowLocations(location, {name: location.down(name) for name in keys})
        if keys.get(key) in known and HERE in path.parents:
            raise FaultError(location, f"{format_value(keys.get(key))} is there twice")
        record = make_record(kind, row, places)
        yield getattr(record, key), record


def _read_section(path: Path, section: str) -> list[Any]:
    document = _read_document(path)
    rows = document.get(section)
    if rows is None and path.parent != HERE:
        return []
    if not isinstance(rows, list):
        raise FaultError(Location(path, (section,)), "wanted a list of rows")
    return rows


def make_record(kind: type[_T], row: Any, places: RowLocations) -> _T:  # noqa: ANN401
    """Build a row's record. Raises FaultError for a key or a value that does not fit."""
    if not isinstance(row, dict):
        raise FaultError(places.row, f"wanted a mapping, found {format_value(row)}")
    known = _read_type_hints(cast("Any", kind))
    for key in row:
        if key not in known:
            near = find_nearest(str(key), known)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise FaultError(places.locate(str(key)), f"unknown key {format_value(key)}{hint}")
    values = {
        key: value
        if known[key] is str and isinstance(value, str)
        else _convert_value(value, known[key], places.locate(key))
        for key, value in row.items()
    }
    named = values.get("name") in getattr(kind, "NAMED_ABOVE_ZERO", ())
    for key in ("value",) if named else getattr(kind, "ABOVE_ZERO", ()):
        if values.get(key) == 0:
            raise FaultError(places.locate(key), "wanted a number above 0, found 0")
    try:
        return kind(**values)
    except TypeError as error:
        text = str(error)
        missing = text.split(": ", 1)[-1] if "missing" in text else text
        raise FaultError(places.row, f"missing {missing}") from error


@cache
def _read_type_hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401  (a dataclass)
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


_PLAIN = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def _convert_value(value: Any, kind: Any, location: Location) -> Any:  # noqa: ANN401
    """Return the value for a record: lists as tuples, mappings as records, days as text."""
    if type(value) is datetime.date:
        value = value.isoformat()
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        some = next(a for a in arguments if a is not type(None))
        return None if value is None else _convert_value(value, some, location)
    if origin is Annotated:
        base, form = arguments
        if not form.pattern.fullmatch(_convert_value(value, base, location)):
            raise FaultError(location, f"wanted {form.words}, found {format_value(value)}")
        return value
    if origin is tuple:
        items = _convert_typed(value, list, location)
        plain = arguments[0] is str and all(isinstance(v, str) for v in items)
        kept = (
            items
            if plain
            else [_convert_value(v, arguments[0], location.down(n)) for n, v in enumerate(items)]
        )
        return tuple(kept)
    if origin is dict:
        pairs = _convert_typed(value, dict, location)
        return {
            str(k): _convert_value(v, arguments[1], location.down(str(k))) for k, v in pairs.items()
        }
    if is_dataclass(kind):
        keys = _convert_typed(value, dict, location)
        return make_record(
            cast("type[Any]", kind),
            value,
            RowLocations(location, {key: location.down(str(key)) for key in keys}),
        )
    unmet = _describe_misfit(value, kind, arguments)
    if unmet is not None:
        raise FaultError(location, f"wanted {unmet}, found {format_value(value)}")
    return value


def _describe_misfit(value: Any, kind: Any, choices: tuple[Any, ...]) -> str | None:  # noqa: ANN401
    """Return what a single value should have been; None if it fits."""
    if get_origin(kind) is Literal:
        return None if value in choices else f"one of {', '.join(str(a) for a in choices)}"
    if not _is_of_kind(value, kind):
        return _PLAIN[kind]
    return f"{_PLAIN[kind]} of at least 0" if kind in (int, float) and value < 0 else None


def _convert_typed(value: Any, kind: type[_T], location: Location) -> _T:  # noqa: ANN401
    if not isinstance(value, kind):
        name = "a list" if kind is list else "a mapping"
        raise FaultError(location, f"wanted {name}, found {format_value(value)}")
    return value


def _is_of_kind(value: Any, kind: type[Any]) -> bool:  # noqa: ANN401
    if kind is float:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
