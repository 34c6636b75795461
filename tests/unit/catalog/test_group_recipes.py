"""Published layouts over several hosts: what counts as the same, and which is near."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_prov.catalog import groups
from kimi_prov.catalog.groups import GroupLayout
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.rules import recipes

ROWS = load_catalogue().groups
K25 = GroupLayout("kimi-k2.5", "int4", "vllm", "H100 SXM 80GB", hosts=2, tensor=8, pipeline=2)
K3 = GroupLayout("kimi-k3", "mxfp4", "vllm", "H200 SXM", hosts=4, tensor=8, data=4, expert=True)


def test_every_row_names_what_the_catalogue_knows() -> None:
    catalogue = load_catalogue()
    for row in ROWS:
        assert catalogue.gpu(row.gpu).name == row.gpu
        assert [catalogue.model(name).name for name in row.models] == list(row.models)
        assert [catalogue.format(name).name for name in row.formats] == list(row.formats)
        assert row.tensor * row.pipeline * row.data == row.hosts * row.gpus, row.id


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (K25, "k2.5-2x-8x-h100-tp8-pp2"),
        (replace(K25, model="kimi-k2.6"), "k2.6-2x-8x-h100-tp8-pp2"),
        (replace(K25, model="kimi-k2.6", hosts=4, pipeline=4), "k2.6-4x-8x-h100-tp8-pp4"),
        (K3, "k3-4x-8x-h200-tp8-dp4-ep"),
    ],
)
def test_a_layout_that_was_told_to_have_run_is_found(given: GroupLayout, found: str) -> None:
    assert [row.id for row in groups.find_proven(ROWS, given)] == [found]


@pytest.mark.parametrize(
    "given",
    [
        replace(K25, hosts=4),
        replace(K25, tensor=16, pipeline=1),
        replace(K25, weights_format="nvfp4"),
        replace(K25, gpu="H200 SXM"),
        replace(K25, engine="sglang"),
        replace(K25, model="kimi-k2-thinking"),
        replace(K3, expert=False),
    ],
)
def test_what_differs_in_anything_has_not_run(given: GroupLayout) -> None:
    assert groups.find_proven(ROWS, given) == ()


def test_what_was_only_written_down_has_not_run() -> None:
    row = next(row for row in ROWS if not row.ran)
    wide = GroupLayout(
        row.models[0], "int4", "vllm", row.gpu, row.hosts, row.tensor, data=row.data, expert=True
    )
    assert groups.find_proven(ROWS, wide) == ()
    near = groups.find_nearest(ROWS, wide)
    assert near is row


def test_the_nearest_has_the_layout_before_the_model() -> None:
    near = groups.find_nearest(ROWS, replace(K25, model="kimi-k2-thinking"))
    assert near is not None
    assert near.id == "k2.5-2x-8x-h100-tp8-pp2"
    assert groups.find_nearest(ROWS, replace(K25, engine="sglang")) is None
    strange = GroupLayout("qwen3-235b-a22b-fp8", "fp8", "vllm", "B200 SXM", hosts=3, tensor=24)
    assert groups.find_nearest(ROWS, strange) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (K25, "TP8 PP2"),
        (K3, "TP8 DP4 EP"),
        (replace(K25, tensor=1, pipeline=1), "TP1"),
        (replace(K3, tensor=1, data=16), "DP16 EP"),
    ],
)
def test_sizes_are_written_in_short(given: GroupLayout, text: str) -> None:
    assert given.text == text


def test_a_plan_s_parallel_is_asked_for_as_it_stands() -> None:
    parallel = {"tensor": 8, "pipeline": 2, "data": 1, "expert": False, "decode_context": 1}
    rows = recipes.find_proven(
        load_catalogue(), "kimi-k2.5", "int4", "vllm", "H100 SXM 80GB", 2, parallel
    )
    assert [row.id for row in rows] == ["k2.5-2x-8x-h100-tp8-pp2"]
    assert (
        recipes.find_proven(load_catalogue(), "kimi-k2.5", "int4", "vllm", None, 2, parallel) == ()
    )
