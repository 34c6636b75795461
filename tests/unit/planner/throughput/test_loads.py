"""The time to load weights is a property of the engine's version, its loader, format and layout."""

import math
import re
from pathlib import Path

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import classes, loads, subjects

ROOT = Path(__file__).parents[4]
K25 = throughput.make_shape("kimi-k2.5", load_catalogue().model("kimi-k2.5").architecture)


def load(version, weights="int4", cards=8, **more):
    serving = throughput.Serving(
        "vllm",
        throughput.find_weight_format(weights),
        weights_in_memory=True,
        version=version,
        **more,
    )
    return loads.estimate_into_gpus(K25, subjects.find_gpus("H200 SXM", cards), serving)


def width(span):
    return span.high / span.low


@pytest.mark.parametrize("row", load_catalogue().load_times, ids=lambda row: row.id)
def test_a_recorded_load_is_as_its_log_has_it(row):
    """Rows of our own recordings are the figure that the engine wrote."""
    if not row.source.startswith("tests/"):
        assert row.author != "kimi-prov"
        return
    text = (ROOT / row.source).read_text(encoding="utf-8")
    assert re.search(rf"(took {row.seconds:.2f} seconds|\"{row.seconds:.2f}\")", text)


@pytest.mark.parametrize("case", loads.read_cases(), ids=lambda case: case.id)
def test_a_measured_load_lies_in_the_range_that_is_planned_for_it(case):
    found = loads.estimate_into_gpus(case.model, case.machine.gpus, case.serving)
    assert found.low <= case.value <= found.high


def test_versions_that_turn_experts_over_on_the_gpu_load_faster_and_are_less_sure():
    old, new = load("0.31.0"), load("0.32.0")
    assert load("0.19.1") == old
    assert load("0.33.0") == new
    assert new.expected < old.expected / 2
    assert width(new) > width(old)


def test_a_version_that_is_not_named_is_the_default():
    default = load_catalogue().engine("vllm", "cuda").version
    assert load(None) == load(default)


def test_a_loader_is_planned_at_its_own_rate_and_an_unknown_one_widely():
    assert load("0.33.0", load_format="instanttensor").expected < load("0.33.0").expected
    measured, unknown = load("0.25.1"), load("0.25.1", load_format="of-a-site")
    assert unknown.expected == measured.expected
    assert width(unknown) > width(measured)


def test_prepared_weights_are_planned_by_copies_of_two_ranks_and_widely():
    plain, kept = load("0.33.0"), load("0.33.0", load_format="kimi_prepared")
    assert kept.expected < plain.expected / 5
    assert width(kept) > width(load("0.25.1"))


def test_weights_that_are_no_packed_integers_are_not_turned_over_in_any_version():
    assert load("0.19.1", "fp8") == load("0.33.0", "fp8")


def test_a_way_without_whole_loads_goes_slower_than_its_worker_alone():
    way = next(way for way in load_catalogue().load_ways if way.name == "packed-turned-by-the-gpu")
    rate = loads.find_rate(way, loads.read_cases())
    assert rate.gb_s < way.gb_s
    assert loads.find_rate(way, ()).gb_s == way.gb_s


def test_every_vllm_of_the_catalogue_has_a_way_for_every_format():
    for engine in load_catalogue().engines:
        if engine.name == "vllm":
            assert math.isfinite(load(engine.version).expected)
            assert math.isfinite(load(engine.version, "nvfp4").expected)


def test_loads_are_a_class_of_the_score_by_themselves():
    scores = classes.score_classes(loads.predict_from_other_authors())
    titles = {score.of.title: score for score in scores}
    own = titles["GPU, INT4 and FP8, load"]
    assert own.rows == len(load_catalogue().load_times)
    assert "all" not in titles
    assert own.verdict == ("unscored" if own.authors < classes.MIN_AUTHORS else own.verdict)
