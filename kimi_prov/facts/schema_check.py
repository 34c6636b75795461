"""Checks a document against the part of JSON Schema that our own schemas use.

The complete library takes too long to import for a check of a spec sheet; a test compares the two.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.names import find_nearest, format_value
from kimi_prov.contract import clean_text
from kimi_prov.documents import format_path
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.documents import SourceText

Key = tuple[str | int, ...]
_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text (in quotes)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
# A longer list of faults does not help.
_MAX_FAULTS = 20
_MAX_KEY_LENGTH, _MAX_PROBLEM_LENGTH = 100, 500


class MisfitError(Exception):
    """A fault of a document, with its path of keys and numbers.

    `fix`: a better correction than an example of a valid value, if one is known.
    """

    def __init__(self, path: Key, problem: str, fix: str | None = None) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.fix = fix


def find_misfits(
    value: Any,  # noqa: ANN401  (it is checked)
    schema: dict[str, Any],
    path: Key = (),
    root: dict[str, Any] | None = None,
) -> Iterator[MisfitError]:
    """Yield all faults of a value by the schema, in the schema's order."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    problem = _check_constant(value, schema) or _check_kind(value, schema)
    if problem:
        yield MisfitError(path, problem)
        return
    if isinstance(value, dict):
        yield from _check_mapping(value, schema, path, root)
    elif isinstance(value, list):
        yield from _check_list(value, schema, path, root)
    elif isinstance(value, str):
        yield from _make_misfit(path, _check_text(value, schema))
    elif _is_of_kind(value, "number"):
        yield from _make_misfit(path, _check_number(value, schema))
    if "anyOf" in schema:
        yield from _check_any_of(value, schema["anyOf"], path, root)


def refuse_misfits(
    name: str, faults: Sequence[MisfitError], written: SourceText, *, fix: str
) -> UserError:
    """Raise UserError with every fault of the document `name`, its line and key, by line.

    `fix` is for faults without a fix of their own.
    """
    line_of: dict[str, int] = {}
    for fault in faults[:_MAX_FAULTS]:
        line = written.line(fault.path)
        where = f"{name}:{line}" if line else name
        key = format_path(fault.path)[:_MAX_KEY_LENGTH] or "the document"
        problem = clean_text.clean_row(f"{key}: {fault.problem}")[:_MAX_PROBLEM_LENGTH]
        line_of.setdefault(f"{where}: {problem}", line or 0)
    lines = sorted(line_of, key=lambda text: line_of[text])
    fixes = list(dict.fromkeys(fault.fix for fault in faults if fault.fix))
    fix = "; ".join(fixes[:2]) or fix
    if len(lines) == 1:
        return UserError(lines[0], fix=fix)
    many = len(lines) if len(faults) <= _MAX_FAULTS else f"the first {_MAX_FAULTS}"
    return UserError("\n".join([f"{name}: {many} faults", *lines]), fix=fix)


def _make_misfit(path: Key, problem: str | None) -> Iterator[MisfitError]:
    if problem:
        yield MisfitError(path, problem)


def _check_kind(value: Any, schema: dict[str, Any]) -> str | None:  # noqa: ANN401
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not kinds or any(_is_of_kind(value, kind) for kind in kinds):
        return None
    expected = " or ".join(_NAMES[kind] for kind in kinds if kind != "null")
    return f"wanted {expected}, found {format_value(value)}"


def _check_constant(value: Any, schema: dict[str, Any]) -> str | None:  # noqa: ANN401
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is None or any(_is_same(value, choice) for choice in choices):
        return None
    expected = ", ".join(str(choice) for choice in choices)
    near = (
        find_nearest(value, [c for c in choices if isinstance(c, str)])
        if isinstance(value, str)
        else []
    )
    hint = f"; did you mean {near[0]!r}?" if near and len(choices) > 1 else ""
    one = "one of " if len(choices) > 1 else ""
    return f"wanted {one}{expected}, found {format_value(value)}{hint}"


def _is_same(value: Any, choice: Any) -> bool:  # noqa: ANN401
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)


def _check_mapping(
    value: dict[Any, Any], schema: dict[str, Any], path: Key, root: dict[str, Any]
) -> Iterator[MisfitError]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key in value:
        if not isinstance(key, str):
            yield MisfitError(path, f"keys are text, found {format_value(key)}")
        elif key not in known and others is False:
            near = find_nearest(key, known)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            yield MisfitError((*path, key), f"unknown key; {hint}")
    for key in schema.get("required", ()):
        if key not in value:
            yield MisfitError(path, f"key {key!r} is missing")
    for key, part in value.items():
        rule = known.get(key, others)
        if isinstance(rule, dict):
            yield from find_misfits(part, rule, (*path, key), root)


def _check_list(
    value: list[Any], schema: dict[str, Any], path: Key, root: dict[str, Any]
) -> Iterator[MisfitError]:
    most = schema.get("maxItems")
    if most is not None and len(value) > most:
        yield MisfitError(path, f"wanted at most {most} entries, found {len(value)}")
        return
    for index, part in enumerate(value):
        if "items" in schema:
            yield from find_misfits(part, schema["items"], (*path, index), root)


def _check_text(value: str, schema: dict[str, Any]) -> str | None:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
        return f"too short or too long: {len(value)} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{format_value(value)} has not the form {schema['pattern']}"
    return None


def _check_number(value: float, schema: dict[str, Any]) -> str | None:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    # Not-a-number is within no bounds.
    return None if low <= value <= high else f"wanted {low} to {high}, found {format_value(value)}"


def _check_any_of(
    value: Any,  # noqa: ANN401
    choices: list[dict[str, Any]],
    path: Key,
    root: dict[str, Any],
) -> Iterator[MisfitError]:
    """Yield the faults of the form that was probably meant: the one that fits deepest."""
    tried = [list(find_misfits(value, choice, path, root)) for choice in choices]
    if not all(tried):
        return
    if all(set(choice) == {"required"} for choice in choices):
        expected = ", or ".join(" and ".join(choice["required"]) for choice in choices)
        yield MisfitError(path, f"wanted {expected}")
        return
    yield from max(tried, key=lambda faults: max(len(fault.path) for fault in faults))


def _is_of_kind(value: Any, kind: str) -> bool:  # noqa: ANN401
    if kind == "null":
        return value is None
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return isinstance(value, int) or kind == "number" or value.is_integer()
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
    return isinstance(value, types[kind])
