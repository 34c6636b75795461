"""`kimi-prov check --suggest`: the smallest machines of the catalogue that serve or carry a load.

Decides: which machines `--suggest` tries (which of them it names).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.facts import offers
from kimi_prov.planner.plan import begin_plan, find_blockers
from kimi_prov.show.report.findings import is_by_hand, is_possible
from kimi_prov.show.report.prices import find_prices
from kimi_prov.sizing import curve, demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.facts.offers import Offer
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.sizing.load import Load

# For each kind: the number of cheapest ones, and of smallest ones.
_CHEAPEST, _SMALLEST = 2, 1
# By the limit of the load: why no number of these machines carries it.
_WHY = {
    "ttft": "the time to the first token is beyond the limit with one request alone",
    "tpot": "the time between two tokens is beyond the limit with one request alone",
    "tokens_per_day": "so few requests at once do not give so many tokens a day",
    demand.NOTHING_SERVES: "its context does not hold a request",
}


@dataclass(frozen=True)
class Suggestion:
    """The smallest machine of a series; `machines` of them carry the load, one without a load.

    `rent`: the usual dollars an hour for all of them. `smaller` names the next smaller machine, and
    why it does not suffice. `by_hand`: `apply` does not install its engine.
    """

    offer: Offer
    facts: Facts
    machines: int
    rent: float | None
    smaller: Mapping[str, str] | None
    by_hand: bool

    @property
    def size(self) -> tuple[int, int]:
        """Return GPUs, or GB of memory, of all machines; then the memory of their GPUs."""
        return self.machines * self.offer.units, self.machines * self.offer.gpu_gb


def suggest_machines(
    catalogue: Catalogue, settings: Settings, load: Load | None
) -> list[Suggestion]:
    """Return the cheapest and the smallest of each kind. Raises UserError where nothing serves.

    Machines whose engine is installed by hand are named only where there are no others.
    """
    found = [
        best
        for ladder in offers.list_ladders(catalogue)
        if (best := _find_least(ladder, catalogue, settings, load)) is not None
    ]
    if not found:
        raise UserError(
            f"no machine that the catalogue's parts make serves {settings.model}"
            + (" and carries the load" if load else ""),
            fix="request less: a shorter context, a wider limit; or name spec sheets of your own",
        )
    ready = [one for one in found if not one.by_hand]
    return list(_choose_suggestions(ready or found))


def _choose_suggestions(found: Sequence[Suggestion]) -> Iterator[Suggestion]:
    for kind in dict.fromkeys(one.offer.kind for one in found):
        alike = [one for one in found if one.offer.kind == kind]
        priced = sorted((o for o in alike if o.rent is not None), key=lambda o: o.rent or 0.0)
        small = sorted(alike, key=lambda one: one.size)
        wanted = [*priced[:_CHEAPEST], *small[:_SMALLEST]]
        yield from {one.offer.name: one for one in wanted}.values()


def _find_least(
    ladder: Iterable[Offer], catalogue: Catalogue, settings: Settings, load: Load | None
) -> Suggestion | None:
    """Return the machine with the fewest GPUs or least memory in all; None if none suffices."""
    best: Suggestion | None = None
    below: Mapping[str, str] | None = None
    for offer in ladder:
        facts = offer.facts(catalogue)
        plan, add_curve = begin_plan(facts, settings, catalogue)
        machines, why = _count_machines(offer, plan, add_curve, load)
        if machines is None:
            below = {"name": offer.name, "why": why}
            continue
        rent = find_prices(facts, catalogue).usual_rent
        cost = rent.value * machines if rent else None
        one = Suggestion(offer, facts, machines, cost, below, is_by_hand(plan))
        if best is None or one.size < best.size:
            best = one
            below = {"name": offer.name, "why": f"{machines:,} of them would be needed"}
        # More memory makes a cache larger but nothing faster: the first that suffices is smallest.
        if load is None or best.machines == 1 or offer.kind != "gpu":
            break
    return best


def _count_machines(
    offer: Offer,
    plan: MachinePlan,
    add_curve: Callable[[int | None], MachinePlan],
    load: Load | None,
) -> tuple[int | None, str]:
    """Return how many of an offer are needed, or None and why no number of them suffices."""
    stops = find_blockers(plan)
    if not is_possible(plan):
        return None, str(stops[0]["title"])
    if bool(plan["hybrid"]) != (offer.kind == "hybrid"):
        return None, "its GPUs do not hold all weights"
    if not plan["throughput"]["decode_tok_s"]["expected"]:
        return None, "its speed is not estimated"
    if load is None:
        return 1, ""
    # One request alone tells at once what more machines do not change.
    sized = demand.size_load(
        [curve.read_single_request(plan["throughput"])], load, serves=_is_context_enough(plan, load)
    )
    if sized["machines"]["expected"] is not None:
        # No machine has more of the requests than there are.
        sized = demand.size_plan(add_curve(load.users), load, serves=True)
    machines = sized["machines"]["expected"]
    needed = None if machines is None else int(machines)
    return needed, "" if needed else _WHY[sized["bound_by"]]


def _is_context_enough(plan: MachinePlan, load: Load) -> bool:
    return load.fits(plan["model"]["context"])
