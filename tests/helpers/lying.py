"""Documents as a lying machine may send them: of the form of a schema, or nearly so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fuzzing

if TYPE_CHECKING:
    from random import Random

TIMES = ["2026-11-24T06:00:00Z", "2026-11-24", "x", "", "9999-99-99T99:99:99Z"]
WORDS = ["operator", "kimi-serve@0.service", "/srv/kimi", "done", "running", *TIMES]
COUNTS = [0, 0, 1, 2, 7, 1 << 31, 1 << 53, 1 << 62]


def conforming(schema: dict[str, Any], random: Random, root: dict[str, Any] | None = None) -> Any:
    """A value that a schema of ours allows, of odd figures and texts."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if "const" in schema or "enum" in schema:
        return random.choice(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema and "properties" not in schema:
        return conforming(random.choice(schema["anyOf"]), random, root)
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else random.choice(kinds)
    if kind == "object":
        return _mapping(schema, random, root)
    if kind == "array":
        many = random.choice([0, 1, 1, 2])
        return [conforming(schema.get("items", {}), random, root) for _ in range(many)]
    return _single(kind, schema, random)


def _mapping(schema: dict[str, Any], random: Random, root: dict[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    found = {
        name: conforming(part, random, root)
        for name, part in schema.get("properties", {}).items()
        if name in required or random.random() < 0.8
    }
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        names = schema.get("propertyNames", {}).get("enum") or ["0", "a", "host-1", "x\x1b[2Jy"]
        for name in random.sample(names, random.choice([0, 1, 1, 2]) if len(names) > 1 else 1):
            found[name] = conforming(others, random, root)
    return found


def _single(kind: str, schema: dict[str, Any], random: Random) -> Any:
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "null":
        return None
    if kind == "string":
        if "pattern" in schema:
            return random.choice(["2026-11-24", "2026-11-24T06:00:00Z", "0" * 64])
        poisoned = f"a{random.choice(fuzzing.POISON)}b"
        return random.choice([*WORDS, *WORDS, random.choice(fuzzing.TEXTS), poisoned])
    low, high = schema.get("minimum", -(1 << 40)), schema.get("maximum", 1 << 62)
    number = random.choice(COUNTS if random.random() < 0.7 else [low, high, -1, 3])
    number = min(max(number, low), high)
    return int(number) if kind == "integer" else number * random.choice([1, 1.0, 0.37])
