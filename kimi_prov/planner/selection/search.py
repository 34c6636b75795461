"""Chooses the layout by search: every one that the engine takes is estimated and ranked.

Of layouts on GPUs, here; those with weights in host memory are listed by `host_memory`.

Decides: tensor, pipeline, data and context parallelism (the best of all layouts).
Applied by: roles/serve.
Held by: tests/unit/planner/selection/test_search.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.planner.memory import gpu
from kimi_prov.planner.selection import served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, Workload
    from kimi_prov.planner.settings.parsing import Settings

# A smaller gain than this may come from the rounding of the estimate: the simpler layout is taken.
_MIN_GAIN = 1.01


@dataclass(frozen=True)
class Candidate:
    """A layout with its context, cache and requests at once; speeds in tokens a second.

    `one` is a request alone, `one_with_wait` with the time to its first token, `all` together.
    `margin`: by this factor its speeds have to be better than those of a well-known layout.
    `way`: what it is where weights are in host memory, in words.
    """

    budget: Budget
    one: float
    one_with_wait: float
    all: float
    margin: float
    way: str = ""

    @property
    def layout(self) -> tuple[int, int, int, int, int]:
        """Ranks, stages, copies of attention, ranks that share a cache, and engines."""
        cards = self.budget.gpu
        if cards is None:
            return (1, 1, 1, 1, self.budget.instances)
        ways = (cards.ranks, cards.pipeline, cards.data, cards.decode_context)
        return (*ways, self.budget.instances)

    @property
    def kind(self) -> tuple[object, ...]:
        """Its layout, and the format of its cache."""
        return (*self.layout, self.way, self.budget.kv_dtype)

    def rate(self, optimise: str) -> tuple[float, float]:
        """Rate it by what is optimised, and where that is equal by the other speed."""
        one, both = self.one_with_wait, (self.one_with_wait * self.all) ** 0.5
        rates = {"latency": (one, self.all), "throughput": (self.all, one)}
        first, second = rates.get(optimise, (both, both))
        return first / self.margin, second / self.margin


class Choice(NamedTuple):
    """The chosen budget and why; `instead`: what would be chosen if nothing served yet."""

    budget: Budget
    because: str = ""
    instead: str = ""


def choose_budget(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> Choice:
    """Choose the best layout for what is asked, or the one that serves, and say why.

    Where no speed is estimated it is the simplest one, without a reason.
    """
    budgets = gpu.list_budgets(host, settings, catalogue, work)
    able = gpu.select_able(budgets, settings, work.model)
    kept = served.select_kept(budgets, settings)
    candidates = list_candidates(host, settings, work, able) if able[0].kv_tokens > 0 else []
    if not candidates:
        return Choice((kept or able)[0])
    optimise = settings.optimise
    best = chosen = choose_best(candidates, optimise)
    if kept:
        chosen = choose_best(list_candidates(host, settings, work, kept), optimise)
    return Choice(chosen.budget, *describe_choice(chosen, best, candidates, optimise))


def list_candidates(
    host: Host, settings: Settings, work: Workload, budgets: Sequence[Budget]
) -> list[Candidate]:
    """Give layouts their speeds; none where no speed is estimated."""
    if work.model.is_synthetic:
        return []
    # This import takes a quarter of a second, which plans of lab models do not need.
    from kimi_prov.planner.throughput import expected  # noqa: PLC0415

    estimate = expected.make_estimator(host, settings, work)
    return [Candidate(budget, *estimate(budget)) for budget in budgets] if estimate else []


def choose_best(candidates: Sequence[Candidate], optimise: str) -> Candidate:
    """Choose the candidate that rates highest, or the first before it that is as good."""
    rates = [candidate.rate(optimise) for candidate in candidates]
    first = max(rate for rate, _ in rates) / _MIN_GAIN
    second = max(other for rate, other in rates if rate >= first) / _MIN_GAIN
    return next(
        candidate
        for candidate, (rate, other) in zip(candidates, rates, strict=True)
        if rate >= first and other >= second
    )


def find_runner_up(
    best: Candidate, candidates: Sequence[Candidate], optimise: str
) -> Candidate | None:
    """Find the best candidate of another layout; None where there is one layout alone."""
    layout = (best.layout, best.way)
    others = [candidate for candidate in candidates if (candidate.layout, candidate.way) != layout]
    return max(others, key=lambda other: other.rate(optimise)) if others else None


def describe_choice(
    chosen: Candidate, best: Candidate, candidates: Sequence[Candidate], optimise: str
) -> tuple[str, str]:
    """Say why a layout is chosen; and where another one serves and stays, what would be."""
    if chosen.kind == best.kind:
        return _describe_best(chosen, candidates, optimise), ""
    gain = best.rate(optimise)[0] / chosen.rate(optimise)[0] - 1
    return (
        f"{_describe_candidate(chosen)}: it serves, and stays",
        f"{_describe_candidate(best)}: {gain:+.0%} by {optimise}",
    )


def _describe_best(best: Candidate, candidates: Sequence[Candidate], optimise: str) -> str:
    other = find_runner_up(best, candidates, optimise)
    if other is None:
        return ""
    said = f"{_describe_candidate(best)}: best of {len(candidates)} by {optimise}"
    lost = 1 - other.rate(optimise)[0] / best.rate(optimise)[0]
    said += f"; next is {_describe_candidate(other)}, {max(0.0, lost):.0%} less"
    if other.margin > best.margin:
        said += ", counted down because few speeds of such layouts are known"
    return said


def _describe_candidate(candidate: Candidate) -> str:
    tensor, stages, copies, shared, engines = candidate.layout
    cards = f"{tensor} GPU{'s' if tensor > 1 else ''} a layer"
    ways = [f"{engines} engines" if engines > 1 else "", candidate.way or cards]
    ways += [f"{stages} stages" if stages > 1 else ""]
    ways += [f"{copies} copies of attention" if copies > 1 else ""]
    ways += [f"a cache shared by {shared}" if shared > 1 else ""]
    return (
        f"{', '.join(way for way in ways if way)} ({_round(candidate.one)} tokens/s alone, "
        f"{_round(candidate.all)} together)"
    )


def _round(speed: float) -> str:
    """Write three figures, as estimates are shown."""
    return f"{float(f'{speed:.3g}'):g}"
