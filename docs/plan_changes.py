"""The page of what the search of layouts changed on the shipped sheets and inventories.

`python docs/plan_changes.py ROOT COMMIT` prints the plans of a checkout's sheets, by the planner
that is imported: so data/plans-before.json came from the planner before the search. Inventories
stand by their golden plans, which have the facts of a recording, and no speeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import Catalogue
from kimi_prov.facts.spec import read_sheet
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Row = Mapping[str, Any]

DOCS = Path(__file__).parent
BEFORE = DOCS / "data" / "plans-before.json"
# Requests at once for which the sheets are planned: one person, a team, many.
LOADS = (1, 16, 64)
HEAD = (
    "machine",
    "at once",
    "layout",
    "cache, tokens",
    "that run",
    "one request, tok/s",
    "all, tok/s",
    "$ a million",
)
_HOURS_OWNED = 3 * 8766


def summarise_plans(root: Path) -> dict[str, Row]:
    """Plan each sheet for each load; of an inventory, take the golden plan."""
    catalogue = Catalogue()
    layouts = {}
    for sheet in sorted((root / "inventories" / "specs").glob("*.yml")):
        for load in LOADS:
            asked = {"kimi_model": "kimi-k2.5", "kimi_concurrency": load}
            settings = parse_settings({**asked, "kimi_weights_source": None}, host=sheet.stem)
            facts = read_sheet(sheet, catalogue)
            plan: Row = make_plan(facts, settings, catalogue)
            layouts[f"{sheet.stem} {load}"] = _summarise(plan, facts.get("price"))
    for file in sorted((root / "tests" / "data" / "golden").glob("*.json")):
        layouts[f"{file.stem} (inventory) -"] = _summarise(
            json.loads(file.read_text("utf-8")), None
        )
    return layouts


def _summarise(plan: Row, price: Row | None) -> Row:
    findings = [row for row in plan.get("findings", ()) if isinstance(row, dict)]
    blocked = any(row["severity"] == "blocker" for row in findings)
    if blocked:
        return {"blocked": True}
    speed, memory = plan.get("throughput", {}), plan["memory"]
    figures = [speed.get(f"{name}_tok_s") for name in ("single", "aggregate")]
    one, together = (row["expected"] if row else None for row in figures)
    hour = _find_hourly_price(price)
    cost = hour / together / 3600 * 1e6 if hour and together else None
    return {
        "layout": _name_layout(plan),
        "cache": memory.get("kv_tokens_max"),
        "running": speed.get("running") or speed.get("concurrency"),
        "one": one and round(one, 1),
        "all": together and round(together),
        "usd": cost and round(cost, 2),
    }


def _find_hourly_price(price: Row | None) -> float | None:
    if not price:
        return None
    if price.get("hourly_usd"):
        return float(price["hourly_usd"])
    bought = price.get("purchase_usd")
    return float(bought) / _HOURS_OWNED if bought else None


def _name_layout(plan: Row) -> str:
    parallel, engine = plan.get("parallel") or {}, plan["engine"]
    name = engine.get("name") or engine["env_name"].split("-")[0]
    words = [f"{short}{parallel[key]}" for key, short in _PARTS if (parallel.get(key) or 1) > 1]
    words += ["EP"] if parallel.get("expert") else []
    count = len(plan.get("instances", ()))
    engines = f"{count} x {name}" if count > 1 else name
    weights = plan.get("weights", {}).get("format", "")
    return " ".join(word for word in (engines, *words, weights) if word)


_PARTS = (
    ("tensor", "TP"),
    ("pipeline", "PP"),
    ("data", "DP"),
    ("decode_context", "DCP"),
)


def lines(root: Path) -> Iterator[str]:
    """Give the table: each machine and load before, and today where it differs."""
    from markup import table  # noqa: PLC0415  (the script beside an older planner has no page)

    document = json.loads(BEFORE.read_text(encoding="utf-8"))
    before, now = document["plans"], summarise_plans(root)
    yield f"Before is the planner of commit `{document['commit']}`."
    yield ""
    rows = [row for name in now for row in _compare(name, before.get(name), now[name])]
    yield from table(HEAD, rows)


def _compare(name: str, before: Row | None, now: Row) -> Iterator[Sequence[str]]:
    machine, load = name.rsplit(" ", 1)
    if before is None or before == now:
        yield machine, load, *_format(now)
        return
    pairs = zip(_format(before), _format(now), strict=True)
    yield machine, load, *(a if a == b else f"{a} -> {b}" for a, b in pairs)


def _format(row: Row) -> tuple[str, ...]:
    if row.get("blocked"):
        return ("blocked", *["-"] * 5)
    figures = (row["cache"], row["running"], row["one"], row["all"], row["usd"])
    return row["layout"], *("-" if figure is None else f"{figure:,}" for figure in figures)


if __name__ == "__main__":
    root, commit = Path(sys.argv[1]), sys.argv[2]
    document = {"commit": commit, "plans": summarise_plans(root)}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
