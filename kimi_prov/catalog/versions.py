"""Compare versions as numbers, and look up verdicts on them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.catalog.flags import Verdict

_MAX_LENGTH = 18  # of a part: a longer one is no version


@cache
def parse_version(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare; text after the first other part is dropped."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not 0 < len(digits) <= _MAX_LENGTH:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def find_verdict(versions: dict[str, Verdict], version: str) -> Verdict | None:
    """Return the verdict on a version, or the one that its two nearest neighbours share."""
    if version in versions:
        return versions[version]
    target = parse_version(version)
    known = sorted((parse_version(name), verdict) for name, verdict in versions.items())
    below = [verdict for at, verdict in known if at <= target]
    above = [verdict for at, verdict in known if at > target]
    if below and not above:
        return below[-1] if below[-1] == "rejected" else None
    return below[-1] if below and below[-1] == above[0] else None
