"""The findings of `drift` about a host, and what would be planned today."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import DriftAnswer

Row = dict[str, Any]
# A placeholder in commands of the machine's own code, which does not know the inventory.
INVENTORY = "INVENTORY"
_COMMAND = re.compile(rf"\b(kimi-prov (\S+)) {INVENTORY}\b")
# Commands for one host, also where several serve one model: its keys are its own.
_OF_ONE = ("key",)
OTHERWISE = "drift.planned_otherwise"
# Parts that describe the moment of planning: the stored plan does not have them.
_PASSING = ("findings", "upgrade")
_ABSENT = None


def make_document(
    answer: DriftAnswer,
    planned: Mapping[str, Any] | None,
    why_not: str | None,
    inventory: str | None,
    limit: Sequence[str] = (),
) -> Row:
    """Return a host's entry of the document from the answer of its own code.

    `planned`: the plan that `apply` would apply now; without one `why_not` says why there is none.
    `limit`: the host and those that are applied with it, where the inventory has others.
    """
    applied = answer.get("plan")
    own = {key: value for key, value in answer.items() if key != "plan"}
    would = None
    if applied and planned:
        would = list(_list_decision_changes(applied, planned))
    return {
        **own,
        "drift": [_add_title(row, inventory, limit) for row in answer["drift"]],
        "unseen": [_add_fix(row, inventory, limit) for row in answer["unseen"]],
        "would_change": would,
        "would_change_unknown": why_not if would is None else None,
    }


def make_unreached_entry(reason: str) -> Row:
    """Return the entry of a host that did not answer."""
    return {
        "ok": False,
        "complete": False,
        "provisioned": None,
        "detail": f"not known: {reason}",
        "looked_at": None,
        "applied": None,
        "weights_read": False,
        "weights_read_from": {},
        "drift": [],
        "unseen": [{"what": "the machine", "why": reason, "fix": None}],
        "would_change": None,
        "would_change_unknown": "the machine was not described",
        "stand_ins": [],
    }


def make_limit_options(
    host: str, hosts: Sequence[str], group: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return the option `--limit` for a host; `group`: its plan's group, applied as a whole."""
    if len(hosts) < 2:
        return ()
    members = [member["host"] for member in group["members"]] if group else []
    return (host, *(name for name in members if name != host))


def _add_title(row: Mapping[str, Any], inventory: str | None, limit: Sequence[str]) -> Row:
    known = DEFINITIONS.get(row["id"])
    if known is None:
        raise HostError(
            f"it reports a difference that this version does not know: {row['id']}",
            "ask with the kimi-prov that provisioned it",
        )
    severity = known.severity(None)
    about = {"id": row["id"], "severity": severity, "title": known.title, "source": known.source}
    return {**about, **_add_fix(row, inventory, limit)}


def _add_fix(row: Mapping[str, Any], inventory: str | None, limit: Sequence[str]) -> Row:
    fix = row.get("fix")
    return {
        **row,
        "fix": _COMMAND.sub(lambda match: _name_inventory(match, inventory, limit), fix or "")
        or fix,
    }


def _name_inventory(match: re.Match[str], inventory: str | None, limit: Sequence[str]) -> str:
    words = [match[1], clean_text.quote_word(inventory) if inventory else INVENTORY]
    if limit:
        hosts = limit[:1] if match[2] in _OF_ONE else limit
        words += ["--limit", clean_text.quote_word(",".join(hosts))]
    return " ".join(words)


def _list_decision_changes(applied: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[Row]:
    """Yield each decision in which two plans differ, by its path in the plan."""
    # Compare as JSON: a tuple is a list there.
    then: Row = json.loads(json.dumps(planned))
    pairs = (
        {key: value for key, value in plan.items() if key not in _PASSING}
        for plan in (applied, then)
    )
    for key, was, will in _list_differences("", *pairs):
        title = DEFINITIONS[OTHERWISE].wording("info", None, {"key": key})
        yield {"id": OTHERWISE, "title": title, "key": key, "applied": was, "planned": will}


def _list_differences(path: str, was: Any, will: Any) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401
    """Yield the differences, as deep as both have the same structure."""
    if was == will:
        return
    if isinstance(was, Mapping) and isinstance(will, Mapping):
        for key in dict.fromkeys([*was, *will]):
            name = f"{path}.{key}".lstrip(".")
            yield from _list_differences(name, was.get(key, _ABSENT), will.get(key, _ABSENT))
        return
    rows = isinstance(was, list) and isinstance(will, list) and len(was) == len(will)
    if rows and all(isinstance(row, Mapping) for row in [*was, *will]):
        for at, (one, other) in enumerate(zip(was, will, strict=True)):
            yield from _list_differences(f"{path}[{at}]", one, other)
        return
    yield path, was, will
