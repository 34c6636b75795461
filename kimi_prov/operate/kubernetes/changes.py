"""What an apply changes: each object as it is and as the cluster would make it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.folder import format_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kimi_prov.operate.kubernetes.answers import Object

Verdict = Literal["created", "changed", "unchanged"]
# What the cluster writes itself.
_CLUSTER_FIELDS = (
    "managedFields",
    "resourceVersion",
    "generation",
    "uid",
    "creationTimestamp",
    "selfLink",
)
_MAX_LENGTH = 120
# A client-side apply kept the whole object there, with its secret values.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRET_NAME = re.compile(
    r"(?:key|token|pass(?:word|wd|phrase)?|secret|credential|authorization)s?(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Hidden:
    """A value that is compared and never shown."""

    value: object


@dataclass(frozen=True)
class Change:
    """One object: what becomes of it, and the values that differ as `path: before -> after`."""

    name: str
    verdict: Verdict
    values: tuple[str, ...] = ()


def compare_objects(before: Iterable[Object], after: Iterable[Object]) -> list[Change]:
    """Compare objects as they are with the result of a server-side dry run."""
    there = {_make_key(row): row for row in before}
    return [
        _compare_object(there.get(_make_key(row)), row)
        for row in after
        if answers.read_text(row, "kind")
    ]


def _make_key(row: Object) -> tuple[str, str, str]:
    group = answers.read_text(row, "apiVersion").rpartition("/")[0]
    return group, answers.read_text(row, "kind"), answers.read_text(row, "metadata", "name")


def _compare_object(before: Object | None, after: Object) -> Change:
    if before is None:
        return Change(format_name(after), "created")
    values = tuple(_list_differences(_drop_cluster_fields(before), _drop_cluster_fields(after), ""))
    return Change(format_name(after), "changed" if values else "unchanged", values)


def _drop_cluster_fields(row: Object) -> Object:
    metadata = {
        k: v for k, v in answers.read_mapping(row, "metadata").items() if k not in _CLUSTER_FIELDS
    }
    annotations = answers.read_mapping(metadata, "annotations")
    if _LAST_APPLIED in annotations:
        hidden = {_LAST_APPLIED: _Hidden(annotations[_LAST_APPLIED])}
        metadata = {**metadata, "annotations": {**annotations, **hidden}}
    kept = {**{k: v for k, v in row.items() if k != "status"}, "metadata": metadata}
    kind = answers.read_text(row, "kind")
    if kind in ("Secret", "ConfigMap"):
        for part in ("data", "stringData"):
            if entries := answers.read_mapping(row, part):
                kept[part] = {
                    key: _Hidden(value) if kind == "Secret" or _SECRET_NAME.search(key) else value
                    for key, value in entries.items()
                }
        return kept
    return {key: _hide_secrets(value) for key, value in kept.items()}


def _hide_secrets(value: object) -> object:
    """Hide the values of environment variables whose names say that they are secret."""
    if isinstance(value, list):
        return [_hide_secrets(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    hidden = {key: _hide_secrets(inner) for key, inner in value.items()}
    if "value" in hidden and _SECRET_NAME.search(answers.read_text(value, "name")):
        hidden["value"] = _Hidden(hidden["value"])
    return hidden


def _list_differences(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if before.get(key) != after.get(key):
                inner = f"{path}.{key}" if path else str(key)
                yield from _list_differences(before.get(key), after.get(key), inner)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            if one != other:
                yield from _list_differences(one, other, f"{path}[{index}]")
    else:
        yield f"{path}: {_shorten_value(before)} -> {_shorten_value(after)}"


def _shorten_value(value: object) -> str:
    if isinstance(value, _Hidden):
        return "(not shown)"
    text = (
        "nothing"
        if value is None
        else json.dumps(value, ensure_ascii=False, default=lambda _: "(not shown)")
    )
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
