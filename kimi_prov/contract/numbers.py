"""Numbers in the output of other programs: plain ones are parsed, others are unknown.

Digits of other scripts, numbers of a thousand digits and `26.5.6` are not plain numbers.
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
    """Return the whole number at the begin of `128 GB`; None where there is none."""
    match = _WHOLE.match(text or "")
    return int(match.group()) if match else None


def parse_leading_decimal(text: str | None) -> float | None:
    """Return the number at the begin of `26.562 GB/s`; None where there is none."""
    match = _DECIMAL.match(text or "")
    return float(match.group()) if match else None
