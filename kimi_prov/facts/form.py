"""Holds a document against the part of JSON Schema that our own schemas use.

The library that knows all of it takes longer to import than a check of a spec sheet may; a test
holds the two against each other.
"""

from __future__ import annotations

import math
import re
from typing import Any

from kimi_prov.catalog.names import nearest, shown

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
_MOST_CHARACTERS = 10_000


class MisfitError(Exception):
    """What does not fit, and the keys and numbers that lead to it.

    `fix` corrects it, where it is known better than by an example of what fits.
    """

    def __init__(self, path: Key, problem: str, fix: str | None = None) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.fix = fix


def fit(
    value: Any,  # noqa: ANN401  (it is checked)
    schema: dict[str, Any],
    path: Key = (),
    root: dict[str, Any] | None = None,
) -> None:
    """Raise MisfitError for the first thing in which the value does not satisfy the schema."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    _constant(value, schema, path)
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if kinds and not any(_is(value, kind) for kind in kinds):
        expected = " or ".join(_NAMES[kind] for kind in kinds if kind != "null")
        raise MisfitError(path, f"wanted {expected}, found {shown(value)}")
    if isinstance(value, dict):
        _mapping(value, schema, path, root)
    elif isinstance(value, list):
        _list(value, schema, path, root)
    elif isinstance(value, str):
        _text(value, schema, path)
    elif _is(value, "number"):
        _number(value, schema, path)
    if "anyOf" in schema:
        _any_of(value, schema["anyOf"], path, root)


def _constant(value: Any, schema: dict[str, Any], path: Key) -> None:  # noqa: ANN401
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None and not any(_same(value, choice) for choice in choices):
        expected = ", ".join(str(choice) for choice in choices)
        near = (
            nearest(value, [c for c in choices if isinstance(c, str)])
            if isinstance(value, str)
            else []
        )
        hint = f"; did you mean {near[0]!r}?" if near and len(choices) > 1 else ""
        one = "one of " if len(choices) > 1 else ""
        raise MisfitError(path, f"wanted {one}{expected}, found {shown(value)}{hint}")


def _same(value: Any, choice: Any) -> bool:  # noqa: ANN401
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)


def _mapping(
    value: dict[Any, Any], schema: dict[str, Any], path: Key, root: dict[str, Any]
) -> None:
    known = schema.get("properties", {})
    for key in value:
        if not isinstance(key, str):
            raise MisfitError(path, f"keys are text, found {shown(key)}")
        if key not in known and schema.get("additionalProperties") is False:
            near = nearest(key, known)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise MisfitError((*path, key), f"unknown key; {hint}")
    for key in schema.get("required", ()):
        if key not in value:
            raise MisfitError(path, f"key {key!r} is missing")
    for key, part in value.items():
        if key in known:
            fit(part, known[key], (*path, key), root)


def _list(value: list[Any], schema: dict[str, Any], path: Key, root: dict[str, Any]) -> None:
    most = schema.get("maxItems")
    if most is not None and len(value) > most:
        raise MisfitError(path, f"wanted at most {most} entries, found {len(value)}")
    for number, part in enumerate(value):
        if "items" in schema:
            fit(part, schema["items"], (*path, number), root)


def _text(value: str, schema: dict[str, Any], path: Key) -> None:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", _MOST_CHARACTERS):
        raise MisfitError(path, f"too short or too long: {len(value)} characters")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise MisfitError(path, f"{shown(value)} has not the form {schema['pattern']}")


def _number(value: float, schema: dict[str, Any], path: Key) -> None:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    # Not-a-number is within no bounds.
    if not low <= value <= high:
        raise MisfitError(path, f"wanted {low} to {high}, found {shown(value)}")


def _any_of(value: Any, choices: list[dict[str, Any]], path: Key, root: dict[str, Any]) -> None:  # noqa: ANN401
    """Say what is wrong with the form that was meant: the one that was followed the deepest."""
    faults: list[MisfitError] = []
    for choice in choices:
        try:
            fit(value, choice, path, root)
        except MisfitError as fault:
            faults.append(fault)
        else:
            return
    if all(set(choice) == {"required"} for choice in choices):
        expected = ", or ".join(" and ".join(choice["required"]) for choice in choices)
        raise MisfitError(path, f"wanted {expected}")
    raise max(faults, key=lambda fault: len(fault.path))


def _is(value: Any, kind: str) -> bool:  # noqa: ANN401
    if kind == "null":
        return value is None
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return isinstance(value, int) or kind == "number" or value.is_integer()
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
    return isinstance(value, types[kind])
