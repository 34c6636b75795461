"""Finds a row by the names that people and machines have for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from kimi_prov.contract.addresses import HUB_REPOSITORY, HUB_REVISION, PLAIN_NAME
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_T = TypeVar("_T")


@dataclass(frozen=True)
class Form:
    """What a text of the catalogue has to look like where a path or an address is made of it."""

    words: str
    pattern: re.Pattern[str]


PathName = Annotated[str, Form("a plain name (letters, digits, . _ + -)", PLAIN_NAME)]
HubName = Annotated[str, Form("a repository of the hub (OWNER/NAME)", HUB_REPOSITORY)]
Revision = Annotated[str, Form("a revision (letters, digits, . _ - /)", HUB_REVISION)]

_MAKERS = re.compile(r"\b(nvidia|amd|intel|geforce|instinct|tesla|radeon)\b")
_CHAFF = re.compile(r"\((r|tm|c)\)|®|™|@.*$|\b\d+-core\b|\b(cpu|processor)\b")
_LONGEST = 200
_TIER = re.compile(r"\b(platinum|gold|silver|bronze)\b")


def plain(text: str) -> str:
    """Return a name without makers, marks, clock and punctuation: what tells two parts apart."""
    # Cut and on one line: a name is short, and the time that a pattern takes is bounded by that.
    low = _MAKERS.sub(" ", _CHAFF.sub(" ", " ".join(text[:_LONGEST].lower().split())))
    return re.sub(r"[^a-z0-9.+]", "", low)


def forms(name: str) -> list[str]:
    """Ways in which a processor is called: whole, without its tier, by its number alone."""
    low = name.lower()
    return [plain(low), plain(_TIER.sub(" ", low)), plain(low.rsplit(" ", 1)[-1])]


def index(rows: Iterable[_T], keys: Callable[[_T], Iterable[str]]) -> dict[str, _T]:
    """Map every key to its row; where two rows share one, the first has it."""
    found: dict[str, _T] = {}
    for row in rows:
        for key in keys(row):
            found.setdefault(key, row)
    return found


def unknown(kind: str, name: str, known: Mapping[str, Iterable[str]]) -> UserError:
    """Say that a name is not known, with the nearest ones first. `known`: names, their aliases."""
    by_alias = {alias: row for row, aliases in known.items() for alias in aliases}
    called = {**by_alias, **{row: row for row in known}}
    near = list(dict.fromkeys(called[hit] for hit in nearest(name.rsplit("/", 1)[-1], called)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return UserError(
        f"unknown {kind} {shown(name)}; {hint}", fix=f"choose one of: {', '.join(known)}"
    )


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that look like this one, the nearest first."""
    import difflib  # noqa: PLC0415  (only a refusal pays for it)

    by_low = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower()[:100], by_low, n=3, cutoff=0.4)
    return [by_low[key] for key in close]


def shown(value: object) -> str:
    """Return a value as a message may carry it: short, on one line."""
    if isinstance(value, (dict, list, tuple, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
