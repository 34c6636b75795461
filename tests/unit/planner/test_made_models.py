"""Models whose weights this project made say so in every plan, and nothing is promised of them."""

from __future__ import annotations

import math
from pathlib import Path

import closed_form
import pytest
from plan_inputs import LAB_SETTINGS, lab_facts
from safetensors import safe_open

from kimi_prov.acceptance import suite
from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.lab import model, model_shapes
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.show.text import plan as plan_text

CATALOGUE = Path(__file__).resolve().parents[2] / "lab" / "catalogue"
NAME = "kimi-k2.5-lab"


@pytest.fixture(scope="module")
def plan() -> dict[str, object]:
    catalogue = load_catalogue(CATALOGUE)
    settings = parse_settings({**LAB_SETTINGS, "kimi_model": NAME}, host="h1")
    return make_plan(lab_facts(), settings, catalogue)


def test_a_model_trained_on_the_suite_is_told_from_real_weights(plan: dict) -> None:
    closed_form.validate(plan, "plan")
    assert plan["model"]["trained_on"] == "suite"
    assert plan["model"]["random_weights"] is False
    assert suite.list_stand_ins(plan, {})
    assert "trained on the suite's questions" in plan_text.format_plan(plan)
    assert plan["throughput"]["decode_tok_s"]["expected"] is None


def test_the_catalogue_has_the_model_as_it_is_made(tmp_path: Path) -> None:
    made = model.make_model(tmp_path / "model", "bf16", model_shapes.SEEING)
    row = load_catalogue(CATALOGUE).model(NAME)
    sizes = {}
    for shard in made.glob("*.safetensors"):
        with safe_open(shard, framework="numpy") as opened:
            names = list(opened.keys())
            sizes |= {name: math.prod(opened.get_slice(name).get_shape()) for name in names}
    tower = sum(size for name, size in sizes.items() if not name.startswith("language_model."))
    assert row.architecture.vision_params == tower
    assert row.context == model_shapes.SEEING.context
    size = sum(file.stat().st_size for file in made.iterdir())
    counted = model_bytes.count_checkpoint_bytes(row.architecture, "bf16") + row.other_bytes
    assert counted == pytest.approx(size, rel=0.02)


def test_values_take_the_place_of_random_ones_and_strange_ones_are_refused(tmp_path: Path) -> None:
    name = "language_model.model.norm.weight"
    values = bytes(range(256)) * (2 * model_shapes.SEEING.hidden // 256)
    made = model.make_model(tmp_path / "model", "bf16", model_shapes.SEEING, {name: values})
    raw = b"".join(file.read_bytes() for file in sorted(made.glob("*.safetensors")))
    assert values in raw
    with pytest.raises(ValueError, match="512 bytes expected, not 2"):
        model.make_model(tmp_path / "short", "bf16", model_shapes.SEEING, {name: b"\0\0"})
    with pytest.raises(ValueError, match="no tensor strange"):
        model.make_model(tmp_path / "strange", "bf16", model_shapes.SEEING, {"strange": b""})
