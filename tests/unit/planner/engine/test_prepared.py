"""Prepared weights: where they are asked for or measured, and nothing changes what serves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from plan_inputs import HUGE, argument, blocked_by, found, gpu_facts, lab_facts, plan, quoted

from kimi_prov.catalog import loader

ON = {"prepared_weights": "on"}
FORMAT, EXTRA = "--load-format", "--model-loader-extra-config"
SERVED = {
    "model": "kimi-k2.5",
    "engine": "vllm",
    "version": "0.33.0",
    "kv_dtype": "bf16",
    "tensor": 8,
    "pipeline": 1,
    "data": 1,
    "decode_context": 8,
    "instances": 1,
    "concurrency": None,
    "requests": None,
    "gpu_share": None,
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue with a measured start of prepared weights on GPUs."""
    rows = loader.load_catalogue().load_times
    whole = replace(rows[0], id="l900", load_format="kimi_prepared", layers=None, version="0.33.0")
    monkeypatch.setattr(loader.Catalogue, "load_times", property(lambda _self: (*rows, whole)))


def folder(document: dict[str, Any]) -> str:
    extra: dict[str, str] = json.loads(argument(document, EXTRA))
    return extra["folder"]


def test_what_is_asked_for_is_planned_whole() -> None:
    plain, document = plan(lab_facts()), plan(lab_facts(), **ON)
    kept = document["prepared_weights"]
    assert argument(document, FORMAT) == "kimi_prepared"
    assert folder(document) == f"{kept['dir']}/0"
    assert kept["dir"].startswith("/srv/kimi/prepared/")
    assert document["engine"]["locks"] == [*plain["engine"]["locks"], "prepared-0.1.0.txt"]
    assert document["engine"]["env_name"] != plain["engine"]["env_name"]
    # The files replace a RAM disk and a warm page cache, and take room on the disk.
    assert not document["ram_disk"]["enabled"]
    assert not document["warm"]["enabled"]
    assert document["disk"]["required_bytes"] - plain["disk"]["required_bytes"] == kept["bytes"] > 0
    assert document["disk"]["mounts_for"] == [*plain["disk"]["mounts_for"], "/srv/kimi/prepared"]
    [row] = found(document, "weights.prepared")
    assert row["severity"] == "info"


def test_other_sizes_of_requests_and_flags_of_answers_share_a_folder() -> None:
    one = folder(plan(lab_facts(), **ON))
    assert folder(plan(lab_facts(), **ON, engine_args={"reasoning-parser": "x"})) == one
    assert folder(plan(lab_facts(), **ON, context=512)) == one
    assert folder(plan(lab_facts(), **ON, concurrency=2)) == one


def test_what_shapes_the_files_has_a_folder_of_its_own() -> None:
    one = folder(plan(lab_facts(), **ON))
    assert folder(plan(lab_facts(), **ON, engine_args={"quantization": "fp8"})) != one
    assert folder(plan(lab_facts(), **ON, engine_args={"enable-expert-parallel": True})) != one


@pytest.mark.parametrize(
    ("facts", "settings", "required"),
    [
        (gpu_facts, HUGE | {"engine_version": "0.19.1"}, "a version of vLLM"),
        (gpu_facts, HUGE | {"ram_disk": "always"}, "no RAM disk"),
        (gpu_facts, HUGE | {"engine_args": {"load-format": "dummy"}}, "without load-format"),
        (gpu_facts, HUGE | {"weights_format": "nvfp4"}, "weights in bf16 or int4"),
        (lab_facts, HUGE, "weights in bf16, for cpu builds"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_asked_for_and_left_where_it_is_not(
    facts: Any, settings: dict[str, Any], required: str
) -> None:
    document = plan(facts(), **settings, **ON)
    assert "weights.prepared" in blocked_by(document)
    assert required in found(document, "weights.prepared")[0]["required"]
    left = plan(facts(), **settings)
    assert found(left, "weights.prepared") == []
    assert required in left["prepared_weights"]["reason"]
    for one in (document, left):
        assert FORMAT not in one["instances"][0]["argv"] or "dummy" in one["instances"][0]["argv"]
        assert one["prepared_weights"]["dir"] is None


def test_auto_waits_for_a_measurement() -> None:
    kept = plan(gpu_facts(), **HUGE)["prepared_weights"]
    assert not kept["enabled"]
    assert "was measured" in kept["reason"]


def test_the_plan_s_start_goes_by_the_rate_of_copies() -> None:
    plain, kept = (
        plan(quoted("quote-8x-b200"), **HUGE, ram_disk="never", **one)["throughput"]["load_s"]
        for one in ({}, ON)
    )
    assert kept["expected"] < plain["expected"]


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("served", "settings", "enabled"),
    [
        (None, {}, True),
        (None, {"prepared_weights": "off"}, False),
        ({}, {}, False),
        ({}, {"choose_anew": True}, True),
        ({}, ON, True),
        ({"prepared": True}, {}, True),
    ],
)
def test_a_machine_that_serves_keeps_its_way(
    served: dict[str, Any] | None, settings: dict[str, Any], enabled: bool
) -> None:
    facts = gpu_facts()
    facts["kimi"]["served"] = served if served is None else SERVED | served
    kept = plan(facts, **HUGE, **settings)["prepared_weights"]
    assert kept["enabled"] is enabled, kept["reason"]
    assert kept["reason"]
