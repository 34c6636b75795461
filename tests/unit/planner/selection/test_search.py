"""The layout on GPUs is the best of all that the engine takes, for what is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan_inputs import HUGE, argument, blocked_by, found, gpu_facts, plan, quoted

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner.decisions import Workload
from kimi_prov.planner.memory import gpu
from kimi_prov.planner.selection import search
from kimi_prov.planner.settings.parsing import parse_settings

CATALOGUE = load_catalogue()
# The search takes the simpler one of two layouts where they differ by less.
EQUAL = 1.011
OPTIMISE = st.sampled_from(["latency", "throughput", "balanced"])
CARDS = st.integers(1, 16)
MIB = st.sampled_from([81559, 97871, 143771, 183359, 275040])
REQUESTS = st.sampled_from([1, 2, 3, 7, 16, 20, 31, 33, 64, 100, 256, 1000])


def best(cards: int, mib: int, **given_settings: Any) -> search.Candidate | None:
    """The chosen candidate for cards of this size; None where they do not hold the model."""
    facts = gpu_names.add_known_gpus(gpu_facts(cards, mib), CATALOGUE)
    named = {f"kimi_{name}": value for name, value in given_settings.items()}
    asked = parse_settings({"kimi_model": "kimi-k2.5", **named}, host="h1")
    engine = CATALOGUE.engine("vllm", "cuda")
    assert engine is not None
    work = Workload(engine, CATALOGUE.model("kimi-k2.5"), "int4")
    host = read_host(facts, CATALOGUE)
    budgets = gpu.list_budgets(host, asked, CATALOGUE, work)
    able = gpu.select_able(budgets, asked, work.model)
    candidates = search.list_candidates(host, asked, work, able)
    holds = [c for c in candidates if c.budget.kv_tokens_one >= 32768]
    return search.choose_best(holds, asked.optimise) if holds else None


def rate(candidate: search.Candidate | None, optimise: str) -> float:
    return candidate.rate(optimise)[0] if candidate else 0.0


def compare(fewer: search.Candidate | None, more: search.Candidate | None, optimise: str) -> None:
    assert rate(fewer, optimise) <= EQUAL * rate(more, optimise), (fewer, more)


@settings(deadline=None, max_examples=40)
@given(OPTIMISE, CARDS, MIB, REQUESTS, st.sampled_from([32768, 50000, 65536, 131072, 262144]))
def test_a_context_that_is_set_is_never_better_than_auto(
    optimise: str, cards: int, mib: int, requests: int, context: int
) -> None:
    asked = {"optimise": optimise, "concurrency": requests}
    auto = best(cards, mib, **asked)
    compare(best(cards, mib, context=context, **asked), auto, optimise)


@settings(deadline=None, max_examples=40)
@given(OPTIMISE, CARDS, CARDS, MIB, MIB, REQUESTS)
def test_more_cards_or_memory_never_make_it_worse(
    optimise: str, cards: int, more: int, mib: int, larger: int, requests: int
) -> None:
    asked = {"optimise": optimise, "concurrency": requests}
    small = best(min(cards, more), min(mib, larger), **asked)
    compare(small, best(max(cards, more), max(mib, larger), **asked), optimise)


@settings(deadline=None, max_examples=40)
@example(8, 81559, 20, 31)
@given(CARDS, MIB, REQUESTS, REQUESTS)
def test_more_requests_never_lower_what_all_get(
    cards: int, mib: int, requests: int, more: int
) -> None:
    few = best(cards, mib, optimise="throughput", concurrency=min(requests, more))
    many = best(cards, mib, optimise="throughput", concurrency=max(requests, more))
    compare(few, many, "throughput")


@settings(deadline=None, max_examples=60)
@given(
    OPTIMISE,
    MIB,
    REQUESTS,
    st.sampled_from(
        [
            {"instances": 1},
            {"instances": 2},
            {"instances": 4},
            {"kv_dtype": "bf16"},
            {"engine_args": {"tensor-parallel-size": 4}},
            {"engine_args": {"tensor-parallel-size": 8}},
            {"engine_args": {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}},
            {"engine_args": {"tensor-parallel-size": 1, "data-parallel-size": 8}},
            {"engine_args": {"decode-context-parallel-size": 8, "tensor-parallel-size": 8}},
        ]
    ),
)
def test_no_value_that_is_set_is_better_than_auto(
    optimise: str, mib: int, requests: int, fixed: dict[str, Any]
) -> None:
    asked = {"optimise": optimise, "concurrency": requests}
    compare(best(8, mib, **asked, **fixed), best(8, mib, **asked), optimise)


def test_eight_h100_share_a_cache_that_one_of_them_does_not_hold() -> None:
    """It was planned for 18,432 tokens and two requests, and 65,536 by hand for eight."""
    auto = plan(quoted("reference-001"), **HUGE)
    by_hand = plan(quoted("reference-001"), context=65536, **HUGE)
    assert blocked_by(auto) == set()
    assert auto["model"]["context"] >= 65536
    assert auto["model"]["kv_dtype"] == "bf16"
    assert auto["throughput"]["aggregate_tok_s"] == by_hand["throughput"]["aggregate_tok_s"]
    assert found(auto, "parallel.context")
    reason = auto["parallel"]["reason"]
    assert reason.startswith("8 GPUs a layer, a cache shared by 8 (")
    assert "by balanced; next is " in reason


def test_two_engines_serve_side_by_side_where_four_cards_hold_the_model() -> None:
    """Balanced takes one engine: it writes 4 % less together and reads 60 % faster."""
    document = plan(
        quoted("quote-8x-b200"),
        model="kimi-k2.6",
        weights_format="nvfp4",
        concurrency=64,
        optimise="throughput",
    )
    assert [row["gpus"] for row in document["instances"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [row["port"] for row in document["instances"]] == [8001, 8002]
    assert document["instances"][1]["env"]["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert argument(document, "--max-num-seqs") == "32"
    one = plan(
        quoted("quote-8x-b200"),
        model="kimi-k2.6",
        weights_format="nvfp4",
        concurrency=64,
        optimise="throughput",
        instances=1,
    )
    assert len(one["instances"]) == 1
    both, single = (row["throughput"]["aggregate_tok_s"]["expected"] for row in (document, one))
    assert both > single


@pytest.mark.parametrize(("count", "fuller"), [(2, 1), (3, 2), (4, 2)])
def test_engines_with_fewer_requests_count_with_their_own_speed(count: int, fuller: int) -> None:
    """Three requests on two engines: one of them has one alone, which is faster."""
    document = plan(quoted("quote-8x-b200"), instances=2, concurrency=count, **HUGE)
    alone = plan(quoted("quote-8x-b200"), instances=2, concurrency=2, **HUGE)
    one, each = (row["throughput"]["decode_tok_s"]["expected"] for row in (alone, document))
    together = fuller * each + (count - fuller) * (each if count % 2 == 0 else one)
    speed = document["throughput"]["aggregate_tok_s"]["expected"]
    assert speed == pytest.approx(together, rel=0.01)


def test_more_engines_than_cards_are_refused() -> None:
    document = plan(gpu_facts(8), instances=9, engine="vllm", **HUGE)
    assert "gpu.divisible" in blocked_by(document)


def test_what_is_optimised_decides() -> None:
    speeds = {}
    for optimise in ("latency", "balanced", "throughput"):
        document = plan(quoted("reference-001"), optimise=optimise, **HUGE)
        one, everyone = (
            document["throughput"][name]["expected"] for name in ("single_tok_s", "aggregate_tok_s")
        )
        speeds[optimise] = (one, everyone)
        assert f"by {optimise}; next is " in document["parallel"]["reason"]
    assert speeds["latency"][0] > speeds["balanced"][0]
    assert speeds["throughput"][1] > speeds["balanced"][1]
