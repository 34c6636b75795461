"""Findings: what was observed, what is required, and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NotRequired, TypedDict, TypeVar, Unpack, cast

from kimi_prov.contract.documents.findings import Finding
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.planner.registry.definition import REMEDIES, SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.planner.registry.definition import Severity

# How a guest gets the instructions of its host's processor.
SHOW_HOST_CPU = (
    "pass the host's CPU through (libvirt: <cpu mode='host-passthrough'/>, QEMU: -cpu host; in a "
    "cloud, choose an instance type that shows them)"
)

_ORDER = tuple(SEVERITIES)
# A finding of any document.
_Row = TypeVar("_Row", bound=Mapping[str, object])


class Observation(TypedDict):
    """The parts of a finding that depend on the machine. The registry has the others.

    `severity` if the definition has several, `names` for the {names} of its title, `wording`
    for another title, `title` and `source` if the definition takes them from the catalogue.
    """

    observed: object
    required: object
    fix: NotRequired[str | None]
    severity: NotRequired[Severity]
    names: NotRequired[Mapping[str, object]]
    wording: NotRequired[str | None]
    title: NotRequired[str]
    source: NotRequired[str | None]


def make_finding(identity: str, **observation: Unpack[Observation]) -> Finding:
    """Make a finding from its definition and an observation.

    Raises KeyError for an id that the registry does not have, and ValueError for a severity, title
    or source that the caller must not give, or a blocker or warning without a fix.
    """
    definition = DEFINITIONS[identity]
    severity = definition.severity(observation.get("severity"))
    title, source = observation.get("title"), observation.get("source")
    if (title and not definition.own_title) or (source and not definition.own_source):
        message = f"title and source of {identity} are those of the registry"
        raise ValueError(message)
    fix = observation.get("fix")
    if severity in ("blocker", "warning") and fix is None:
        message = f"{identity} says no fix"
        raise ValueError(message)
    return Finding(
        id=identity,
        severity=severity,
        title=title
        or definition.wording(severity, observation.get("wording"), observation.get("names") or {}),
        observed=observation["observed"],
        required=observation["required"],
        fix=fix,
        source=source or definition.source,
        concerns=definition.concerns,
    )


class Findings:
    """Collects findings while a plan is made."""

    def __init__(self) -> None:
        self._rows: list[Finding] = []

    def add(self, identity: str, **observation: Unpack[Observation]) -> None:
        """Make a finding and keep it."""
        self._rows.append(make_finding(identity, **observation))

    def extend(self, rows: Iterable[Finding]) -> None:
        """Add findings of rules."""
        self._rows.extend(rows)

    def rows(self) -> list[Finding]:
        """All findings, the most severe first; the blocker that costs most to remove first."""
        return sort_by_severity(sorted(self._rows, key=_rank_remedy))


def _rank_remedy(row: Finding) -> int:
    """Rank a blocker by what it costs to remove; other findings keep their order."""
    if row["severity"] != "blocker":
        return 0
    return -list(REMEDIES).index(DEFINITIONS[row["id"]].remedy)


def sort_by_severity(rows: Iterable[_Row]) -> list[_Row]:
    """Return findings, the most severe first; within a severity in their present order."""
    return sorted(rows, key=lambda row: _ORDER.index(cast("Severity", row["severity"])))
