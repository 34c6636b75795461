"""What an apply changes: each object as it is beside what the cluster would make of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.folder import called

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kimi_prov.operate.kubernetes.answers import Object

Verdict = Literal["created", "changed", "unchanged"]
# What the cluster writes itself.
_ITS_OWN = (
    "managedFields",
    "resourceVersion",
    "generation",
    "uid",
    "creationTimestamp",
    "selfLink",
)
_LONGEST = 120
# Where a former client-side apply keeps the whole object, secret values with it.
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


def changes(before: Iterable[Object], after: Iterable[Object]) -> list[Change]:
    """Compare objects as they are with what a server-side dry run made of them."""
    there = {_key(row): row for row in before}
    return [_change(there.get(_key(row)), row) for row in after if answers.text(row, "kind")]


def _key(row: Object) -> tuple[str, str, str]:
    group = answers.text(row, "apiVersion").rpartition("/")[0]
    return group, answers.text(row, "kind"), answers.text(row, "metadata", "name")


def _change(before: Object | None, after: Object) -> Change:
    if before is None:
        return Change(called(after), "created")
    values = tuple(_differences(_plain(before), _plain(after), ""))
    return Change(called(after), "changed" if values else "unchanged", values)


def _plain(row: Object) -> Object:
    metadata = {k: v for k, v in answers.mapping(row, "metadata").items() if k not in _ITS_OWN}
    annotations = answers.mapping(metadata, "annotations")
    if _LAST_APPLIED in annotations:
        hidden = {_LAST_APPLIED: _Hidden(annotations[_LAST_APPLIED])}
        metadata = {**metadata, "annotations": {**annotations, **hidden}}
    found = {**{k: v for k, v in row.items() if k != "status"}, "metadata": metadata}
    kind = answers.text(row, "kind")
    if kind in ("Secret", "ConfigMap"):
        for part in ("data", "stringData"):
            if entries := answers.mapping(row, part):
                found[part] = {
                    key: _Hidden(value) if kind == "Secret" or _SECRET_NAME.search(key) else value
                    for key, value in entries.items()
                }
        return found
    return {key: _without_secrets(value) for key, value in found.items()}


def _without_secrets(value: object) -> object:
    """Hide the values of environment variables whose names say that they are secret."""
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {key: _without_secrets(inner) for key, inner in value.items()}
    if "value" in found and _SECRET_NAME.search(answers.text(value, "name")):
        found["value"] = _Hidden(found["value"])
    return found


def _differences(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if before.get(key) != after.get(key):
                inner = f"{path}.{key}" if path else str(key)
                yield from _differences(before.get(key), after.get(key), inner)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            if one != other:
                yield from _differences(one, other, f"{path}[{number}]")
    else:
        yield f"{path}: {_short(before)} -> {_short(after)}"


def _short(value: object) -> str:
    if isinstance(value, _Hidden):
        return "(not shown)"
    text = (
        "nothing"
        if value is None
        else json.dumps(value, ensure_ascii=False, default=lambda _: "(not shown)")
    )
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
