"""Tell causes from what followed: by time, by the order of lines, and by what brings what.

Decides: what `diagnose` recognises (which of the found troubles is the cause).
Held by: tests/unit/on_host/troubles/test_trouble_causes.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kimi_prov.contract.troubles import list_effects

if TYPE_CHECKING:
    from kimi_prov.on_host.troubles.scan import Hit, Occurrence, Scanner

# What follows, follows within half an hour; the kernel's line may come a little after an engine's.
_FOLLOWS_S = 1800
_LATE_S = 15
_LATE_LINES = 60
_RANKS = {"fault": 0, "symptom": 1, "general": 2}
_CONFIDENCES = ("certain", "likely", "possible")
_NAME = re.compile(r"<([a-z_]+)>")
_MAX_VALUE = 120


@dataclass
class Cause:
    """A trouble that nothing else in the logs explains, and what followed from it."""

    hit: Hit
    followed_by: list[Hit] = field(default_factory=list)
    # The line with which the engine answered again, 0 where it did not.
    over_at_line: int = 0

    @property
    def title(self) -> str:
        """The row's title, with what the lines had."""
        return _fill(self.hit.row.title, self.hit)

    @property
    def cause(self) -> str:
        """What is wrong, and why the lines show it."""
        text = _fill(self.hit.row.cause, self.hit)
        if self.over_at_line:
            text += f" The engine answered again afterwards (line {self.over_at_line})."
        return text

    @property
    def fix(self) -> str:
        """What to do."""
        return _fill(self.hit.row.fix, self.hit)


@dataclass
class Diagnosis:
    """The causes, the surest first; and the lines that are harmless."""

    causes: list[Cause]
    harmless: list[Hit]


def find_causes(scanner: Scanner) -> Diagnosis:
    """Return what the lines that were read tell."""
    hits = scanner.list_hits()
    harmless = [hit for hit in hits if hit.row.kind == "harmless"]
    troubles = [hit for hit in hits if hit.row.kind != "harmless"]
    explained = {id(hit): _find_explanation(hit, troubles) for hit in troubles}
    causes = {
        id(hit): Cause(hit, over_at_line=_find_recovery(hit, scanner))
        for hit in troubles
        if explained[id(hit)] is None and hit.row.kind != "consequence"
    }
    for hit in troubles:
        root = _find_root(hit, explained)
        if root is not hit and id(root) in causes:
            causes[id(root)].followed_by.append(hit)
    kept = _drop_vague([one for one in causes.values() if not _is_arrived(one)])
    kept = _drop_general(kept) or _tell_an_end(troubles, scanner)
    effects = {effect for cause in kept for effect in _list_effects(cause.hit)}
    return Diagnosis(
        sorted(kept, key=_rank),
        [hit for hit in harmless if hit.row.effect is None or hit.row.effect not in effects],
    )


def _tell_an_end(troubles: list[Hit], scanner: Scanner) -> list[Cause]:
    """Return, where nothing tells why, what ended and whose lines tell why."""
    ends = [
        hit
        for hit in sorted(troubles, key=_start)
        if hit.row.kind == "consequence" and hit.row.fix and not _find_recovery(hit, scanner)
    ]
    return [Cause(ends[0], ends[1:])] if ends else []


def _find_explanation(hit: Hit, troubles: list[Hit]) -> Hit | None:
    """Return the trouble that brought this one: of several the one that came last before it."""
    able = [
        other
        for other in troubles
        if other is not hit
        # What the system refused may be told in place of an end, and explains no more than that.
        and (other.row.kind != "general" or hit.row.kind == "consequence")
        and hit.row.effect in list_effects(other.row.leads_to)
        and _is_before(other, hit)
        and not _is_of_another(hit, other)
        and not (_is_cause_of(hit, other) and _is_first(hit, other))
    ]
    return max(able, key=lambda other: (-_get_rank(other), _start(other)), default=None)


def _is_of_another(hit: Hit, other: Hit) -> bool:
    """Whether both name a thing that has to be the same, and name different ones."""
    ours, theirs = (
        {_shorten(v) for name, v in one.named if name == hit.row.same} for one in (hit, other)
    )
    return bool(ours and theirs) and not ours & theirs


def _shorten(device: str) -> str:
    """Return a PCI address without its domain and function, which messages write in many ways."""
    return device.lower().partition(".")[0][-5:]


def _is_cause_of(one: Hit, other: Hit) -> bool:
    """Whether one may have brought the other."""
    return other.row.effect in list_effects(one.row.leads_to) and _is_before(one, other)


def _is_first(one: Hit, other: Hit) -> bool:
    """Whether, of two that may each have brought the other, this one is the cause."""
    return (_get_rank(one), _start(one)) < (_get_rank(other), _start(other))


def _get_rank(hit: Hit) -> int:
    return _RANKS.get(hit.row.kind, len(_RANKS))


def _start(hit: Hit) -> int:
    return hit.first[0].order


def _is_before(one: Hit, other: Hit) -> bool:
    """Whether a line of one stands shortly before a line of the other."""
    return any(_is_soon_after(a, b) for a in one.occurrences for b in other.occurrences)


def _is_soon_after(before: Occurrence, after: Occurrence) -> bool:
    if before.time_s is not None and after.time_s is not None:
        return -_LATE_S <= after.time_s - before.time_s <= _FOLLOWS_S
    if before.source == after.source:
        return before.line - after.line <= _LATE_LINES
    return True


def _find_root(hit: Hit, explained: dict[int, Hit | None]) -> Hit:
    seen = {id(hit)}
    while True:
        above = explained[id(hit)]
        if above is None or id(above) in seen:
            return hit
        hit = above
        seen.add(id(hit))


def _drop_vague(causes: list[Cause]) -> list[Cause]:
    """Leave symptoms out where a cause is known that may have brought them at another time."""
    faults = [one.hit for one in causes if one.hit.row.kind == "fault"]
    return [
        one
        for one in causes
        if one.hit.row.kind != "symptom" or not any(_may_bring(hit, one.hit) for hit in faults)
    ]


def _may_bring(fault: Hit, symptom: Hit) -> bool:
    return symptom.row.effect in _list_effects(fault) and not _is_of_another(symptom, fault)


def _drop_general(causes: list[Cause]) -> list[Cause]:
    """Leave out what the system refused, where more is known or an engine answered later."""
    known = [one for one in causes if one.hit.row.kind != "general"]
    refused = [one for one in causes if one.hit.row.kind == "general" and not one.over_at_line]
    surest = min((_rank_confidence(one) for one in refused), default=0)
    return known or [one for one in refused if _rank_confidence(one) == surest]


def _rank_confidence(cause: Cause) -> int:
    return _CONFIDENCES.index(cause.hit.row.confidence)


def _is_arrived(cause: Cause) -> bool:
    """Whether a download stumbled, ended nothing, and the engine answered with its files."""
    return (
        cause.hit.row.kind == "symptom"
        and cause.over_at_line > 0
        and all(one.row.effect == "download_error" for one in (cause.hit, *cause.followed_by))
    )


def _list_effects(hit: Hit) -> set[str]:
    own = {hit.row.effect} if hit.row.effect else set()
    return list_effects(hit.row.leads_to) | own


def _find_recovery(hit: Hit, scanner: Scanner) -> int:
    end = hit.occurrences[-1]
    ready = scanner.ready.get(end.source)
    return ready.line if ready and ready.order > end.order else 0


def _rank(cause: Cause) -> tuple[int, int, int]:
    return _get_rank(cause.hit), _rank_confidence(cause), _start(cause.hit)


def _fill(text: str, hit: Hit) -> str:
    """Put what the groups of the row matched in place of their names."""
    return _NAME.sub(lambda name: _find_value(name, hit), " ".join(text.split()))


def _find_value(name: re.Match[str], hit: Hit) -> str:
    value = hit.values.get(name[1]) or hit.row.unknown.get(name[1])
    return value[:_MAX_VALUE] if value else name[0]
