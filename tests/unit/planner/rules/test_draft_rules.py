"""Which draft a plan proposes, takes or warns of, and the context that it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import HUGE, blocked_by, found, gpu_facts, hybrid_facts, lab_facts, plan

from kimi_prov.catalog.loader import OVERLAY
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

NAME = "kimi-k2.5-eagle3-mla"
# A pair of runs as a site measures it.
TRIAL = {
    "draft": NAME,
    "model": "kimi-k2.5",
    "gpu": "H200 SXM",
    "gpus": 8,
    "format": "int4",
    "engine": "vllm",
    "tokens": 3,
    "load": "code",
    "input_tokens": 8192,
    "output_tokens": 1024,
    "without_tok_s": 100.0,
    "source": "our own bench",
    "confidence": "high",
}


def overlay(folder: Path, *trials: dict[str, Any]) -> None:
    rows = [TRIAL | {"id": f"own-{n}"} | trial for n, trial in enumerate(trials)]
    (folder / "models.yaml").write_text(yaml.safe_dump({"draft_trials": rows}))


def only(document: dict[str, Any], identity: str) -> dict[str, Any]:
    [finding] = found(document, identity)
    return finding


def test_a_plan_without_a_draft_says_what_one_would_gain_and_takes() -> None:
    load = {"concurrency": 1, "workload": "code", "engine_version": "0.19.1"}
    document = plan(gpu_facts(), **load, **HUGE)
    assert document["speculative"] is None
    finding = only(document, "engine.draft_gain")
    assert finding["severity"] == "info"
    assert NAME in finding["required"]
    assert f"set kimi_speculative to {NAME}" in finding["fix"]
    assert "tokens in place of" in finding["required"]


def test_off_says_nothing_and_a_bare_off_of_yaml_is_the_same() -> None:
    for off in ("off", False, "False"):
        document = plan(gpu_facts(), speculative=off, **HUGE)
        assert document["speculative"] is None
        assert not found(document, "engine.draft_gain")


def test_either_variable_names_the_draft() -> None:
    new = plan(gpu_facts(), speculative=NAME, **HUGE)
    old = plan(gpu_facts(), speculative_model=NAME, **HUGE)
    assert new == old
    assert new["speculative"]["name"] == NAME
    with pytest.raises(UserError, match="kimi_speculative: off"):
        plan(gpu_facts(), speculative="off", speculative_model=NAME, **HUGE)


def test_a_planned_draft_is_part_of_the_speeds() -> None:
    plain, fast = (plan(gpu_facts(), speculative=s, **HUGE) for s in ("off", NAME))
    one, other = (p["throughput"]["decode_tok_s"] for p in (plain, fast))
    assert other["expected"] > one["expected"]
    assert other["high"] / other["low"] > one["high"] / one["low"]
    assert NAME in fast["throughput"]["basis"]
    assert fast["throughput"]["prefill_tok_s"] == plain["throughput"]["prefill_tok_s"]


def test_a_draft_that_loses_is_a_warning() -> None:
    document = plan(
        gpu_facts(),
        speculative="kimi-k2.5-dflash",
        engine_version="0.32.0",
        speculative_tokens=24,
        concurrency=512,
        input_tokens=128,
        output_tokens=1024,
        **HUGE,
    )
    assert only(document, "engine.draft_gain")["severity"] == "warning"


def test_a_hybrid_is_told_that_drafts_lose() -> None:
    finding = only(plan(hybrid_facts(), **HUGE), "engine.draft_gain")
    assert "host memory" in finding["title"]
    assert not found(plan(lab_facts()), "engine.draft_gain")


def test_a_draft_that_no_version_here_loads_is_refused() -> None:
    document = plan(gpu_facts(), speculative="kimi-k2.5-mtp", **HUGE)
    assert "engine.draft" in blocked_by(document)
    [finding] = found(document, "engine.draft")
    assert "None" not in str(finding)


@pytest.mark.parametrize(
    ("trials", "workload", "requests", "taken"),
    [
        ([(4, 150), (16, 120)], "code", 8, True),
        ([(4, 150), (16, 120)], "code", 16, True),
        ([(4, 150), (16, 90)], "code", 8, False),  # it loses at 16
        ([(4, 150), (16, 120)], "code", 17, False),  # nobody tried so many
        ([(4, 150)], "code", 2, False),
        ([(4, 150), (16, 120)], "chat", 8, False),  # another kind of text
        ([(4, 150), (16, 120)], "mixed", 8, False),
    ],
)
def test_auto_takes_a_draft_only_where_measured_pairs_show_a_gain(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trials: list[tuple[int, int]],
    workload: str,
    requests: int,
    taken: bool,
) -> None:
    overlay(tmp_path, *({"requests": n, "with_tok_s": float(s)} for n, s in trials))
    monkeypatch.setenv(OVERLAY, str(tmp_path))
    document = plan(gpu_facts(), workload=workload, concurrency=requests, **HUGE)
    assert bool(document["speculative"]) is taken
    # On other cards, or by an engine that cannot load it, the same pair says nothing.
    assert (
        plan(gpu_facts(4), workload=workload, concurrency=requests, **HUGE)["speculative"] is None
    )
    old = plan(
        gpu_facts(), workload=workload, concurrency=requests, engine_version="0.15.0", **HUGE
    )
    assert old["speculative"] is None
    assert "engine.draft" not in blocked_by(old)


@settings(max_examples=15, deadline=None)
@given(
    count=st.sampled_from([4, 8]),
    mib=st.sampled_from([81559, 97871, 143771, 183359]),
    name=st.sampled_from([NAME, "kimi-k2.5-dflash", "kimi-k2.5-thinking-eagle3"]),
    requests=st.sampled_from([1, 16, 64]),
)
def test_a_draft_never_shortens_the_context_silently(
    count: int, mib: int, name: str, requests: int
) -> None:
    common = {"context": "auto", "concurrency": requests, "engine_version": "0.32.0"} | HUGE
    without, document = (
        plan(gpu_facts(count, mib), speculative=s, **common) for s in ("off", name)
    )
    shorter = document["model"]["context"] < without["model"]["context"]
    told = found(document, "engine.draft_context") or blocked_by(document)
    assert told or not shorter
