"""Read a cluster's answers: any part may be missing or of another type."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
# A valid name of an object; kubectl cannot take it for an option or a path.
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def read_path(value: object, *path: str | int) -> Any:  # noqa: ANN401  (whatever lies there)
    """Return the value at a path of keys, None where a key is missing."""
    for step in path:
        if isinstance(step, int):
            inside = isinstance(value, list) and -len(value) <= step < len(value)
            value = value[step] if inside and isinstance(value, list) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def read_text(value: object, *path: str | int) -> str:
    """Return a text, "" where there is none."""
    result = read_path(value, *path)
    return result if isinstance(result, str) else ""


def read_int(value: object, *path: str | int) -> int:
    """Return a whole number, 0 where there is none."""
    result = read_path(value, *path)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def read_rows(value: object, *path: str | int) -> list[Object]:
    """Return the objects of a list."""
    result = read_path(value, *path)
    return [row for row in result if isinstance(row, dict)] if isinstance(result, list) else []


def read_mapping(value: object, *path: str | int) -> Object:
    """Return an object, an empty one where there is none."""
    result = read_path(value, *path)
    return result if isinstance(result, dict) else {}


def read_name(value: object) -> str:
    """Return an object's name, "" where it has no valid one."""
    result = read_text(value, "metadata", "name")
    return result if NAME.fullmatch(result) else ""


def find_condition(value: object, kind: str) -> Object:
    """Return a condition of an object's status by its type."""
    for row in read_rows(value, "status", "conditions"):
        if row.get("type") == kind:
            return row
    return {}


def is_condition_true(value: object, kind: str) -> bool:
    """Whether a condition of an object's status is true."""
    return find_condition(value, kind).get("status") == "True"


def parse_time(value: object, *path: str | int) -> float | None:
    """Return a time in seconds since 1970, None where there is none."""
    try:
        time = datetime.fromisoformat(read_text(value, *path))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
