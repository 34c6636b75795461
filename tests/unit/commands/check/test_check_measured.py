"""What `probe --measure` found of a machine stands in place of the catalogue's in `check`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import closed_form
import pytest
from click.testing import CliRunner

from kimi_prov.cli import cli
from kimi_prov.facts import recording

ROOT = Path(__file__).resolve().parents[4]
H200 = ROOT / "tests" / "data" / "recordings" / "h200-x8"
HYBRID = ROOT / "inventories" / "specs" / "reference-000.yml"
STREAMED = ROOT / "inventories" / "specs" / "quote-epyc-9755-rtx-pro-6000.yml"


def checked(*words: object, form: str = "json") -> Any:
    done = CliRunner().invoke(cli, ["check", *map(str, words), "--format", form])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return json.loads(done.output) if form == "json" else done.output


def target(*words: object) -> dict[str, Any]:
    found = checked(*words)
    closed_form.validate(found, "check")
    (row,) = found["targets"]
    return row


@pytest.fixture(scope="module")
def gpus() -> dict[str, Any]:
    """Facts of a recorded machine with eight H200."""
    return recording.read_recording(H200)


@pytest.fixture(scope="module")
def hybrid() -> dict[str, Any]:
    """Facts as a sheet tells them, of two EPYC 9654 with two H100."""
    facts: dict[str, Any] = target(HYBRID)["facts"]
    return facts


def written(folder: Path, facts: dict[str, Any], **changed: Any) -> Path:
    path = folder / "facts.json"
    path.write_text(json.dumps({**facts, **changed}))
    return path


def with_gpus(facts: dict[str, Any], **figures: float) -> dict[str, Any]:
    found = copy.deepcopy(facts)
    for gpu in found["gpus"]:
        gpu["measured"] = figures
    return found


def with_memory(facts: dict[str, Any], share: float) -> dict[str, Any]:
    found = copy.deepcopy(facts)
    bandwidth = found["memory"]["bandwidth_bytes_per_s"]
    bandwidth["measured"] = bandwidth["theoretical"] * share
    return found


def width(span: dict[str, float]) -> float:
    return span["high"] / span["low"]


def test_without_a_measurement_nothing_is_said(tmp_path: Path, gpus: dict[str, Any]) -> None:
    path = written(tmp_path, gpus)
    row = target(path)
    assert (row["measured"], row["effect"]) == ([], None)
    assert "Measured on the machine" not in checked(path, form="text")


def test_slow_memory_slows_a_hybrid_and_narrows_its_range(
    tmp_path: Path, hybrid: dict[str, Any]
) -> None:
    row = target(written(tmp_path, with_memory(hybrid, 0.6)))
    assert row["measured"] == [
        {"what": "memory bandwidth", "measured": 553.0, "instead_of": 691.2, "unit": "GB/s"}
    ]
    speed = row["effect"]["single_tok_s"]
    assert speed["after"]["expected"] < speed["before"]["expected"]
    assert width(speed["after"]) < width(speed["before"])
    assert speed["after"] == row["plan"]["throughput"]["single_tok_s"]
    # The planner is asked twice; what would stand there without is what it said of the sheet.
    bare = target(written(tmp_path, hybrid))["plan"]["throughput"]
    assert speed["before"] == bare["single_tok_s"]


def test_memory_as_fast_as_expected_moves_nothing_but_the_range(
    tmp_path: Path, hybrid: dict[str, Any]
) -> None:
    speed = target(written(tmp_path, with_memory(hybrid, 0.75)))["effect"]["single_tok_s"]
    assert speed["after"]["expected"] == speed["before"]["expected"]
    assert width(speed["after"]) < width(speed["before"])


def test_each_figure_of_a_gpu_changes_what_depends_on_it(
    tmp_path: Path, gpus: dict[str, Any]
) -> None:
    usual = 0.89 * 4800e9
    slow = with_gpus(gpus, bandwidth_bytes_per_s=usual / 2)
    effect = target(written(tmp_path, slow))["effect"]
    assert effect["single_tok_s"]["after"]["expected"] < (
        0.9 * effect["single_tok_s"]["before"]["expected"]
    )
    weak = with_gpus(gpus, bf16_flops_per_s=400e12)
    row = target(written(tmp_path, weak))
    (what,) = row["measured"]
    assert (what["what"], what["unit"]) == ("matrix rate of a GPU", "TFLOP/s in bf16")
    assert what["measured"] == 400
    prefill = row["effect"]["prefill_tok_s"]
    assert prefill["after"]["expected"] < 0.8 * prefill["before"]["expected"]


def test_what_the_plan_does_not_use_is_not_said_to_change_it(
    tmp_path: Path, hybrid: dict[str, Any]
) -> None:
    """RAWINT4 takes no prompt over the GPU: how fast experts are copied there is no matter."""
    slow = with_gpus(hybrid, copy_bytes_per_s=50e9, copy_together_bytes_per_s=6e9)
    assert target(written(tmp_path, slow))["measured"] == []


def test_a_slow_slot_slows_prompts_that_experts_are_copied_for(tmp_path: Path) -> None:
    """FP8 of KTransformers computes a prompt layer by layer on the GPU."""
    streaming = ("--model", "kimi-k2")
    facts = target(STREAMED, *streaming)["facts"]
    slow = with_gpus(facts, copy_bytes_per_s=50e9, copy_together_bytes_per_s=6e9)
    row = target(written(tmp_path, slow), *streaming)
    assert [part["measured"] for part in row["measured"]] == [6.0]
    prefill = row["effect"]["prefill_tok_s"]
    assert prefill["after"]["expected"] < 0.5 * prefill["before"]["expected"]


def test_one_gpu_that_was_not_measured_leaves_all_to_the_data_sheet(
    tmp_path: Path, gpus: dict[str, Any]
) -> None:
    partly = with_gpus(gpus, bandwidth_bytes_per_s=1e12)
    del partly["gpus"][3]["measured"]
    assert target(written(tmp_path, partly))["measured"] == []


@pytest.mark.parametrize(
    ("path", "counts"), [("/dev/nvme0n1", True), ("/srv/kimi/models/x", True), ("/boot/x", False)]
)
def test_only_the_weights_own_disk_says_how_long_loading_takes(
    tmp_path: Path, gpus: dict[str, Any], path: str, counts: bool
) -> None:
    found = {"busy": False, "disk": {"bytes_per_s": 0.5e9, "path": path}}
    row = target(written(tmp_path, gpus, measured=found))
    assert bool(row["measured"]) is counts
    if counts:
        load = row["effect"]["load_s"]
        assert load["after"]["expected"] > 2 * load["before"]["expected"]
        assert width(load["after"]) < width(load["before"])


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_every_form_says_what_was_measured_and_what_it_changed(
    tmp_path: Path, hybrid: dict[str, Any], form: str
) -> None:
    path = written(tmp_path, with_memory(hybrid, 0.6))
    page = checked(path, form=form).replace("\\", "").replace("&gt;", ">")
    flat = " ".join(page.split())
    assert "Measured on the machine: memory bandwidth 553 GB/s instead of 691" in flat
    assert "expected decode of one request alone" in flat
    assert "times wide" in flat
