"""Parse numbers as people write them: with units, and with thousands separators."""

from __future__ import annotations

import re

_MAX_LENGTH = 200
_PLAIN = re.compile(r"^\d{1,18}(\.\d{1,9})?$")
_GROUPED = re.compile(
    r"^[1-9]\d{0,2}(?:([,'\u2019_ \u00a0\u202f])\d{3})(?:\1\d{3}){0,4}(\.\d{1,2})?$"
)
DOTTED = re.compile(r"^[1-9]\d{0,2}(?:\.\d{3})+$")
_POINT_OR_COMMA = re.compile(r"^\d[\d.,]*[.,][\d.,]*$")
_UNITS = {
    "_gbit_s": ("gbit/s", "gb/s", "gbps", "gbe", "g"),
    "_gb_s": ("gb/s",),
    "_mt_s": ("mt/s", "mhz"),
    "_gb": ("gb", "gib"),
    "_w": ("w", "watt"),
}


def strip_unit(text: str, key: str) -> str:
    """Remove a unit that the key's name holds already."""
    for end, units in _UNITS.items():
        if key.endswith(end):
            unit = next((u for u in units if text.lower().endswith(u)), "")
            return text[: len(text) - len(unit)].rstrip()
    return text.removeprefix("$").removeprefix("US$").strip() if key.endswith("_usd") else text


def parse_number(text: str, *, grouped: bool) -> float | str | None:
    """Return the number; a text that explains an ambiguous one; None for no number."""
    if DOTTED.match(text):
        return describe_ambiguity(text)
    if _PLAIN.match(text):
        return float(text) if "." in text else int(text)
    if _GROUPED.match(text):
        bare = re.sub(r"[^\d.]", "", text)
        if grouped or "," not in text:
            return float(bare) if "." in bare else int(bare)
        return f"{text!r} may be {bare} or {text.replace(',', '.')}: write the one that it is"
    if _POINT_OR_COMMA.match(text) and len(text) <= _MAX_LENGTH:
        return f"{text!r}: write the number with a point before its decimals, and nothing else"
    return None


def describe_ambiguity(text: str) -> str:
    """Return a message with the possible numbers of a text with points."""
    bare = text.replace(".", "")
    if text.count(".") > 1:
        return f"{text}: write {bare}; a point stands before decimals alone"
    return f"{text} may be {bare} or {float(text):g}: write the one that it is"
