"""Check a machine's answer against the type of its subcommand.

As with the shipped schemas, unknown keys are allowed: a machine of a newer version may send more.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.documents import find_odd_number, format_path
from kimi_prov.facts import schema_check
from kimi_prov.on_host.__main__ import COMMANDS
from kimi_prov.schemas.from_types import make_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Misfit(NamedTuple):
    """A key of an answer that does not fit the answer's type, and what is wrong with it."""

    key: str
    problem: str


def find_misfit(words: Sequence[str], answer: Mapping[str, object]) -> Misfit | None:
    """Find the first key that does not fit the answer's type; None where all do.

    `words`: the subcommand and its arguments.
    """
    odd = find_odd_number(answer)
    if odd is not None:
        return Misfit(format_path(odd) or "the answer", "wanted a number that can be computed with")
    name = find_type(words)
    fault = next(schema_check.find_misfits(answer, _make_schema(name)), None) if name else None
    return Misfit(format_path(fault.path) or "the answer", fault.problem) if fault else None


def find_type(words: Sequence[str]) -> str | None:
    """Return the type that COMMANDS names for an answer: `MODULE:CLASS`; None without one."""
    command = COMMANDS.get(words[0])
    kinds = command.answer if command else None
    if kinds is None or isinstance(kinds, str):
        return kinds
    step = words[1] if len(words) > 1 else ""
    return next((kinds[key] for key in (step, "*", "") if key in kinds), None)


@cache
def _make_schema(name: str) -> dict[str, Any]:
    module, _, kind = name.partition(":")
    types = import_module(f"kimi_prov.contract.documents.{module}")
    return make_schema(getattr(types, kind), described=False)
