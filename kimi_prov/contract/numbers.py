"""Numbers in what other programs print: read where they are plain, unknown where they are not.

Digits of other scripts, numbers of a thousand digits and `26.5.6` are no numbers of a machine.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,18}(?![0-9])")
_DECIMAL = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?(?![0-9.])")


def parse_int(text: str | None) -> int | None:
    """Return `128` as a number; None for anything else."""
    match = _WHOLE.fullmatch(text or "")
    return int(match.group()) if match else None


def parse_leading_int(text: str | None) -> int | None:
    """Return the whole number that `128 GB` begins with; None where it begins otherwise."""
    match = _WHOLE.match(text or "")
    return int(match.group()) if match else None


def parse_leading_decimal(text: str | None) -> float | None:
    """Return the number that `26.562 GB/s` begins with; None where it begins otherwise."""
    match = _DECIMAL.match(text or "")
    return float(match.group()) if match else None
