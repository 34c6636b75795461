"""The page that holds vLLM's recipes for Kimi against the plan, flag by flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from markup import table

from kimi_prov.catalog.loader import Catalogue
from kimi_prov.facts.spec import make_facts
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def lines(file: Path) -> Iterator[str]:
    """Give the lines of the page; a difference without a reason is refused."""
    document = yaml.safe_load(file.read_text())
    yield f"Source: {document['source']}."
    for recipe in document["recipes"]:
        own, engine = _read_plan(recipe)
        yield from (
            "",
            f"## {recipe['title']}",
            "",
            f"{recipe['recipe']}; planned with {engine}.",
            "",
        )
        head = ("flag or variable", "recipe", "plan", "verdict", "reason")
        yield from table(head, list(compare(recipe, own)))


def compare(recipe: dict[str, Any], own: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Give the rows of a recipe beside what the plan has: same, other, or left out."""
    reasons = recipe["reasons"]
    for flag, theirs in recipe["theirs"].items():
        value = own.get(flag)
        same = value is not None and (theirs is True or _normalize(value) == _normalize(theirs))
        if not same and flag not in reasons:
            raise ValueError(f"{recipe['title']}: {flag} differs ({value}), and no reason says why")
        verdict = "same" if same else "left out" if value is None else "other"
        shown = "set" if theirs is True else f"`{theirs}`"
        ours = "-" if value is None else "set" if not value else f"`{value}`"
        yield f"`{flag}`", shown, ours, verdict, "" if same else " ".join(reasons[flag].split())


def _normalize(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


def _read_plan(recipe: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Return flags and variables of the planned instance, and the engine's name."""
    catalogue = Catalogue()
    sheet = {"schema": "kimi-prov/spec/v1", "name": "recipe", **recipe["machine"]}
    facts = make_facts(sheet, catalogue, recipe["title"])
    settings = {**recipe["settings"], "kimi_weights_source": None}
    plan = make_plan(facts, parse_settings(settings, host="recipe"), catalogue)
    instance = plan["instances"][0]
    argv, own = instance["argv"], dict(instance["env"])
    for index, word in enumerate(argv):
        if word.startswith("--"):
            after = argv[index + 1] if index + 1 < len(argv) else "--"
            own[word] = "" if after.startswith("--") else after
    return own, f"{plan['engine']['name']} {plan['engine']['version']}"
