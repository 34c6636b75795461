"""AMXINT4 and AMXINT8: experts that were converted, here or elsewhere, and the room they need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from plan_inputs import argument, blocked_by, found, gpu_facts, hybrid_facts, lab_facts, plan

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

# Moonshot publishes it in fp8, 1.03 TB; K2.5 in int4 alone.
FP8 = {"model": "kimi-k2-instruct", "weights_source": None, "concurrency": 1, "context": 32768}
INT4 = FP8 | {"model": "kimi-k2.5"}
TB = 10**12


def with_disk(free: int, **models: int) -> dict[str, Any]:
    facts = hybrid_facts()
    for row in facts["filesystems"]:
        row |= {"free_bytes": free}
    facts["kimi"]["models"] = [{"dir": name, "disk_bytes": size} for name, size in models.items()]
    return facts


def test_nothing_is_converted_where_nobody_asks() -> None:
    document = plan(hybrid_facts(), **FP8)
    assert document["conversion"] is None
    assert document["weights"]["converted"] is None
    assert argument(document, "--kt-method") == "FP8"
    assert not [row for row in document["findings"] if row["id"].startswith("conversion.")]


@pytest.mark.parametrize(("method", "size"), [("AMXINT4", 509.1e9), ("AMXINT8", 1016.4e9)])
def test_experts_are_converted_on_the_machine(method: str, size: float) -> None:
    document = plan(hybrid_facts(), kt_method=method, **FP8)
    assert blocked_by(document) == set()
    closed_form.validate(document, "plan")
    made = document["conversion"]
    assert made["method"] == method
    assert made["from"] == "fp8"
    assert made["bytes"] == pytest.approx(size, rel=0.001)
    assert made["bytes"] == 60 * made["layer_bytes"]
    # A layer of 384 experts in bf16 is 33.8 GB.
    assert made["memory_bytes"] - made["layer_bytes"] == pytest.approx(33.8e9, rel=0.01)
    assert made["nodes"] == [0, 1]
    assert made["threads"] == 92
    assert made["argv"][3:] == ["convert", "--config", "/etc/kimi/convert.json"]
    assert argument(document, "--kt-method") == method
    assert argument(document, "--kt-weight-path") == made["dir"]
    assert argument(document, "--model") == document["weights"]["dir"]
    assert made["dir"].startswith(document["weights"]["dir"] + "-amxint")
    assert document["hybrid"]["method"] == method
    # The engine reads few of the original files, and those once.
    assert document["ram_disk"]["enabled"] is False
    assert document["warm"]["enabled"] is False
    loss = found(document, "conversion.loss")[0]
    assert loss["severity"] == "warning"
    assert method in loss["observed"]


def test_memory_is_that_of_the_converted_experts() -> None:
    plain, small = plan(hybrid_facts(), **FP8), plan(hybrid_facts(), kt_method="AMXINT4", **FP8)
    held, less = (
        sum(part["bytes"] for part in p["memory"]["host_parts"] if part["kind"] == "weights")
        for p in (plain, small)
    )
    assert (held - less) / 1e9 == pytest.approx(1015 - 507, rel=0.01)


def test_int4_weights_cannot_be_converted_and_what_would_work_is_said() -> None:
    document = plan(hybrid_facts(), kt_method="AMXINT4", **INT4)
    assert blocked_by(document) == {"conversion.input"}
    fix = found(document, "conversion.input")[0]["fix"]
    assert "RAWINT4" in fix
    assert "kimi_weights_format" in fix
    assert "kimi_kt_weights_source" in fix


def test_experts_converted_elsewhere_go_with_int4_weights(tmp_path: Path) -> None:
    given = "hf://someone/kimi-k2.5-amxint4@" + "ab" * 20
    document = plan(hybrid_facts(), kt_method="AMXINT4", kt_weights_source=given, **INT4)
    assert blocked_by(document) == set()
    closed_form.validate(document, "plan")
    assert document["conversion"] is None
    told = document["weights"]["converted"]
    assert told["source"] == given
    assert told["pools"] == 2
    assert argument(document, "--kt-weight-path") == told["dir"]
    assert not found(document, "weights.converted_unpinned")
    branch = plan(
        hybrid_facts(),
        kt_method="AMXINT4",
        kt_weights_source="hf://someone/kimi-k2.5-amxint4",
        **INT4,
    )
    assert found(branch, "weights.converted_unpinned")
    pinned = tmp_path / "pinned.json"
    row = {"path": "layer-00001.safetensors", "size": 7, "sha256": "0" * 64}
    pinned.write_text(json.dumps({"files": [row]}))
    sized = plan(
        hybrid_facts(),
        kt_method="AMXINT4",
        kt_weights_source="https://example.com/amx",
        kt_weights_manifest=str(pinned),
        **INT4,
    )
    assert sized["weights"]["converted"]["bytes"] == 7
    assert not found(sized, "weights.converted_unpinned")


def test_room_is_wanted_for_source_and_result_and_the_layer_at_work() -> None:
    assert blocked_by(plan(with_disk(1600 * 10**9), kt_method="AMXINT4", **FP8)) == set()
    document = plan(with_disk(1500 * 10**9), kt_method="AMXINT4", **FP8)
    assert blocked_by(document) == {"disk.room"}
    row = found(document, "disk.room")[0]
    made = document["conversion"]
    assert "958.5 GiB of weights" in row["required"]
    assert (
        f"{(made['bytes'] + made['layer_bytes']) / 2**30:.1f} GiB for the conv" in row["required"]
    )
    # What is there already is not wanted again.
    there = {made["dir"]: made["bytes"], document["weights"]["dir"]: document["weights"]["bytes"]}
    assert blocked_by(plan(with_disk(40 * 10**9, **there), kt_method="AMXINT4", **FP8)) == set()


def test_a_ram_disk_that_is_asked_for_needs_memory_beside_the_converted_experts() -> None:
    asked = {"kt_method": "AMXINT4", "ram_disk": "always", **FP8}
    assert blocked_by(plan(hybrid_facts(gib=2048), **asked)) == set()
    document = plan(hybrid_facts(gib=1024), **asked)
    assert blocked_by(document) == {"ram_disk.memory"}
    assert "for the RAM disk and" in found(document, "ram_disk.memory")[0]["required"]


def test_files_are_sliced_for_the_pools_that_the_inventory_names() -> None:
    args = {"kt-threadpool-count": 1, "kt-numa-nodes": [1], "kt-cpuinfer": 40}
    made = plan(hybrid_facts(), kt_method="AMXINT4", engine_args=args, **FP8)["conversion"]
    assert (made["nodes"], made["threads"]) == ([1], 40)
    assert made["dir"].endswith("-amxint4-1")
    none = {"kt-threadpool-count": None, "kt-numa-nodes": None, "kt-cpuinfer": None}
    made = plan(hybrid_facts(), kt_method="AMXINT4", engine_args=none, **FP8)["conversion"]
    assert made["nodes"] == [0]


@pytest.mark.parametrize("facts", [gpu_facts(), lab_facts()], ids=["on-gpus", "no-gpu"])
def test_another_engine_has_no_such_method(facts: dict[str, Any]) -> None:
    settings = INT4 if facts["gpus"] else {}
    document = plan(facts, kt_method="AMXINT4", **settings)
    assert "conversion.engine" in blocked_by(document)
    assert document["conversion"] is None


def test_the_flag_alone_is_refused_for_the_variable() -> None:
    document = plan(hybrid_facts(), engine_args={"kt-method": "AMXINT4"}, **FP8)
    assert blocked_by(document) == {"conversion.flag"}
    assert "kimi_kt_method: AMXINT4" in found(document, "conversion.flag")[0]["fix"]


def test_long_prompts_stay_on_the_cpu() -> None:
    """sglang-kt asks the wrapper for weights in the GPU's form; the AMX one has no such method."""
    flag = "kt-gpu-prefill-token-threshold"
    own, converted = (
        plan(hybrid_facts(), **more, **FP8) for more in ({}, {"kt_method": "AMXINT4"})
    )
    assert f"--{flag}" in own["instances"][0]["argv"]
    assert f"--{flag}" not in converted["instances"][0]["argv"]
    asked = plan(hybrid_facts(), kt_method="AMXINT4", engine_args={flag: 400}, **FP8)
    assert blocked_by(asked) == {"conversion.prefill"}


def test_a_cpu_without_avx512_is_refused() -> None:
    facts = hybrid_facts()
    facts["cpu"]["isa"] = ["avx2"]
    assert "cpu.format_isa" in blocked_by(plan(facts, kt_method="AMXINT4", **FP8))
    assert "cpu.format_isa" not in blocked_by(plan(facts, **INT4))


def test_a_source_without_a_method_is_refused() -> None:
    document = plan(hybrid_facts(), kt_weights_source="file:///srv/amx", **FP8)
    assert blocked_by(document) == {"conversion.method"}


def test_a_manifest_without_a_source_is_refused(tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.json"
    row = {"path": "layer-00001.safetensors", "size": 7, "sha256": "0" * 64}
    pinned.write_text(json.dumps({"files": [row]}))
    with pytest.raises(UserError, match="kimi_kt_weights_source is not"):
        plan(hybrid_facts(), kt_method="AMXINT4", kt_weights_manifest=str(pinned), **FP8)
