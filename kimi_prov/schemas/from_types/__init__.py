"""Makes the JSON Schema of a document from its type in `kimi_prov.contract.documents`.

The shipped schemas are open: who reads a document of a newer version finds more keys in it. The
closed form of a type refuses keys that it does not declare: tests hold our own documents to it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

if TYPE_CHECKING:
    from kimi_prov.contract.documents.form import Rule

Schema = dict[str, Any]
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_UNIONS = (Union, UnionType)


def make_schema(
    kind: Any,  # noqa: ANN401  (a type)
    *,
    closed: bool = False,
    described: bool = True,
) -> Schema:
    """Return the JSON Schema of a type; `closed` refuses keys that it does not declare.

    Without descriptions, which are read from the source, it is made in no time.
    """
    return _make_whole(kind, _Form(closed=closed, described=described))


@dataclass(frozen=True)
class _Form:
    """Whether undeclared keys are refused, and whether there are descriptions."""

    closed: bool
    described: bool


def _make_whole(kind: Any, form: _Form) -> Schema:  # noqa: ANN401
    if get_origin(kind) in _UNIONS:
        return {"anyOf": [_make_whole(part, form) for part in get_args(kind)]}
    return _make_mapping(kind, form) if is_typeddict(kind) else _make_part(kind, form)


def _make_part(kind: Any, form: _Form) -> Schema:  # noqa: ANN401
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        # A document inside another has a schema of its own.
        inside = "schema" in kind.__annotations__ and not form.closed
        return _make_mapping(kind, form, only=("schema",) if inside else None)
    if origin is Annotated:
        rules = [_convert_rule(rule) for rule in arguments[1:]]
        found = _make_part(arguments[0], form)
        return {**found, **{key: value for rule in rules for key, value in rule.items()}}
    if origin is Literal:
        found = {"enum": list(arguments)} if len(arguments) > 1 else {"const": arguments[0]}
    elif origin in _UNIONS:
        found = _join_alternatives([_make_part(part, form) for part in arguments])
    elif origin is list:
        found = {"type": "array", "items": _make_part(arguments[0], form)}
    elif origin in (dict, Mapping):
        names, values = (_make_part(part, form) for part in arguments)
        found = {"type": "object"}
        found |= {"propertyNames": names} if names != {"type": "string"} else {}
        found |= {"additionalProperties": values} if values else {}
    else:
        found = {} if kind in (Any, object) else {"type": _NAMES[kind]}
    return found


def _convert_rule(rule: Rule) -> Schema:
    """Return what a rule is in JSON Schema."""
    found: Schema = {}
    for field in fields(rule):
        value = getattr(rule, field.name)
        if value is None:
            continue
        if field.name == "any_of_keys":
            found["anyOf"] = [{"required": list(keys)} for keys in value]
        else:
            first, *words = field.name.split("_")
            found[first + "".join(word.capitalize() for word in words)] = value
    return found


def _join_alternatives(parts: list[Schema]) -> Schema:
    """Join alternatives: null, and kinds without rules, are types beside another's."""
    others = [part for part in parts if part != {"type": "null"}]
    if len(others) == 1 and len(parts) > 1:
        only = others[0]
        if "type" in only:
            return {**only, "type": [only["type"], "null"]}
        if "enum" in only or "const" in only:
            return {"enum": [*only.get("enum", [only.get("const")]), None]}
    if all(set(part) == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    return {"anyOf": parts}


def _make_mapping(
    kind: Any,  # noqa: ANN401
    form: _Form,
    only: tuple[str, ...] | None = None,
) -> Schema:
    texts = _read_descriptions(kind) if form.described else {}
    properties, required = {}, []
    hints = get_type_hints(kind, include_extras=True)
    for key, hint in sorted(hints.items(), key=lambda item: item[0] != "schema"):
        if only and key not in only:
            continue
        mark = get_origin(hint) if get_origin(hint) in (Required, NotRequired) else None
        if mark is Required or (mark is None and key in kind.__required_keys__):
            required.append(key)
        part = _make_part(get_args(hint)[0] if mark else hint, form)
        properties[key] = {**part, **({"description": texts[key]} if key in texts else {})}
    found = {"description": _join_lines(kind.__doc__), "type": "object", "properties": properties}
    found |= {"required": required} if required else {}
    return found | ({"additionalProperties": False} if form.closed else {})


def _read_descriptions(kind: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the description of each key of a type: the string below it."""
    module = sys.modules[kind.__module__]
    node = _parse_classes(kind.__module__).get(kind.__name__)
    found: dict[str, str] = {}
    for base in node.bases if node else ():
        parent = getattr(module, ast.unparse(base), None)
        if is_typeddict(parent):
            found |= _read_descriptions(parent)
    for key, text in pairwise(node.body if node else ()):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(key.target)] = _join_lines(ast.literal_eval(text.value))
    return found


@cache
def _parse_classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _join_lines(text: str | None) -> str:
    return " ".join((text or "").split())
