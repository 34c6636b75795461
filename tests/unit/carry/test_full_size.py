"""What the tests of Kimi's own size ask for, held against plans of recorded and made machines."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import golden
import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.on_host.bench.load import Load, choose_lengths
from kimi_prov.planner.plan import make_plan, make_plan_with_curve
from kimi_prov.planner.settings.parsing import parse_settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))
import full_size

EIGHT = 8
# No card holds all layers alone.
ONE_EACH = "an engine on each card"
MIB = 1 << 20
# The inventories that it applies as they are, with an engine that its wheels are carried of.
CARRIED = {"kimi_engine_version": "0.25.1"}


@pytest.mark.parametrize(
    ("cards", "mib", "layers"), [(8, 81559, 61), (8, 143771, 61), (2, 143771, 27), (2, 81559, 15)]
)
def test_cards_hold_as_many_layers_as_leave_room_for_a_cache(cards, mib, layers):
    for name in (full_size.PLAIN, full_size.SEEING):
        assert full_size.layers_held(name, cards * mib * MIB) == layers


def test_rows_are_those_of_a_site_and_have_so_many_layers(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump({"architectures": {}, "models": []}))
    cards = [{"memory.total": "143771 MiB"}] * 2
    models = full_size.Models(tmp_path / "none", cards, most=20)
    models.add_rows(file)
    found = load_catalogue(tmp_path)
    for name in (full_size.PLAIN, full_size.SEEING):
        row = found.model(name)
        assert row.random_weights
        assert row.architecture.layers == 20
        assert not found.model(name + full_size.ESTIMATED).is_synthetic
    whole = load_catalogue().model("kimi-k2.5").architecture
    assert found.model(full_size.SEEING).architecture.vision_params == whole.vision_params


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The catalogue beside the models of eight cards, which have all layers, and their draft."""
    folder = tmp_path_factory.mktemp("rows")
    file = folder / "models.yaml"
    file.write_text(yaml.safe_dump({"architectures": {}, "models": []}))
    full_size.Models(folder / "none", [{"memory.total": "81559 MiB"}] * 8, most=61).add_rows(file)
    return load_catalogue(folder)


@pytest.mark.parametrize("layout", full_size.layouts(EIGHT), ids=lambda layout: layout.name)
@pytest.mark.parametrize(
    ("facts", "whole"), [(golden.h200(), True), (golden.h100(), False)], ids=["h200", "h100"]
)
def test_eight_cards_are_planned_for_each_layout_or_have_too_little_memory(
    layout, facts, whole, rows, tmp_path
):
    # Of random weights nothing is estimated.
    named = layout.model + full_size.ESTIMATED
    wishes = {"kimi_weights_source": full_size.source(layout.model), **layout.wishes, **CARRIED}
    wishes["kimi_model"] = named
    # What is asked for of the host is asked for eight cards: the recorded machine has less.
    facts = copy.deepcopy(facts)
    facts["memory"]["total_bytes"] = 2 << 40
    plan = make_plan(facts, parse_settings(wishes, host="h", base=tmp_path), rows, None)
    blockers = [row["id"] for row in plan["findings"] if row["severity"] == "blocker"]
    assert plan["engine"]["name"] == "vllm"
    assert all(name.startswith(full_size.TOO_SMALL) for name in blockers)
    if blockers:
        names = ("dgx-h200", "data-parallel attention", "a draft that is always rejected")
        assert layout.name == ONE_EACH or (not whole and layout.name in names)
        return
    most = {"kimi_concurrency": max(layout.loads), "kimi_context": 4096}
    settings = parse_settings({**wishes, **most}, host="h", base=tmp_path)
    estimate = make_plan_with_curve(facts, settings, rows)["throughput"]
    curve = {row["concurrency"]: row for row in estimate["curve"]}
    assert curve
    assert not whole or set(layout.loads) <= curve.keys()
    assert estimate["input_tokens"] + estimate["output_tokens"] == 4096
    # `kimi-prov bench` takes them within the context that is applied.
    asked = (estimate["input_tokens"], estimate["output_tokens"])
    load_asked = Load(input_tokens=asked[0], output_tokens=asked[1])
    assert choose_lengths(load_asked, estimate, int(layout.wishes["kimi_context"])) == asked


def test_the_draft_has_the_size_that_is_planned_and_takes_no_room(rows, tmp_path):
    cards = [{"memory.total": "143771 MiB"}]
    made = full_size.Models(tmp_path, cards, most=5).make_draft() / "model.safetensors"
    size = rows.draft(full_size.DRAFT).size_bytes
    assert size < made.stat().st_size < size + (1 << 20)
    assert made.stat().st_blocks * 512 < 1 << 20


def test_a_shipped_inventory_keeps_its_flags_and_asks_each_card_for_its_memory():
    eight, two = (full_size.shipped("dgx-h200", cards) for cards in (8, 2))
    assert eight["kimi_engine_args"]["kv-offloading-size"] == 256
    assert two["kimi_engine_args"]["kv-offloading-size"] == 64
    assert eight["kimi_engine_args"]["enable-expert-parallel"]
    assert not [key for key in eight if key.startswith(("kimi_model", "kimi_weights"))]
    assert full_size.shipped("h100x8", 8)["kimi_engine_args"]["enforce-eager"]


def test_a_request_alone_is_answered_shortly_and_many_as_is_estimated():
    estimate = {"input_tokens": 3072, "output_tokens": 1024}
    assert full_size.lengths(1, estimate) == (3072, 128)
    assert full_size.lengths(64, estimate) == (3072, 1024)
    assert full_size.lengths(1, {**estimate, "output_tokens": 100}) == (3072, 100)


def test_speeds_outside_their_ranges_are_told():
    span = {"low": 10.0, "high": 20.0}
    level = {"tpot_s": {"median": 0.1}, "prefill_tok_s": 30.0}
    ranges = {"decode_tok_s": span, "prefill_tok_s": span}
    assert full_size.outside(level, ranges, 1) == [
        "1 at once: prefill_tok_s 30.0, estimated 10.0 to 20.0"
    ]
    level["tpot_s"]["median"] = 0.2
    assert full_size.outside(level, ranges, 4) == [
        "4 at once: decode_tok_s 5.0, estimated 10.0 to 20.0"
    ]


def test_phases_of_a_start_are_read_from_what_vllm_says():
    log = """\
Loading weights took 41.06 seconds
Model loading took 21.01 GiB memory and 42.146338 seconds
torch.compile took 24.10 s in total
Graph capturing finished in 3 secs, took 0.06 GiB
Available KV cache memory: 104.94 GiB
GPU KV cache size: 19,561,712 tokens
init engine (profile, create kv cache, warmup model) took 94.68 s (compilation: 0.00 s)
"""
    found = full_size.told(log)
    assert found["weights_gib"] == ["21.01"]
    assert found["weights_s"] == ["41.06"]
    assert found["compiling_s"] == ["24.10"]
    assert (found["graphs_s"], found["graphs_gib"]) == (["3"], ["0.06"])
    assert found["cache_tokens"] == ["19,561,712"]
    assert found["profiling_s"] == ["94.68"]
