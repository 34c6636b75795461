"""The same weights are written in the same way wherever a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.on_host.weights import fetch
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.runner import progress
from kimi_prov.show.text import plan as plan_text
from kimi_prov.show.text import run_summary

SHEETS = Path(__file__).resolve().parents[3] / "inventories" / "specs"
SHOWN = "554.3 GiB"


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    facts = spec.read_sheet(SHEETS / "quote-8x-h200.yml", load_catalogue())
    return dict(
        make_plan(facts, parse_settings({"kimi_model": "kimi-k2.5"}, host="q"), load_catalogue())
    )


def test_plan_and_apply(plan: dict[str, Any]) -> None:
    assert SHOWN in plan_text.format_plan(plan)
    assert SHOWN in run_summary.format_served(plan, "box", "192.0.2.1", [])


def test_progress(plan: dict[str, Any]) -> None:
    size = plan["model"]["bytes"]
    update = progress.ProgressUpdate(
        "box", "download", done_bytes=size // 2, total_bytes=size, rate_bytes_per_s=2**30
    )
    assert progress.format_amounts(update) == f"277.1 GiB of {SHOWN} (50 %), 1.0 GiB/s"


def test_the_code_on_the_machine(
    plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with the weights is told in the plan's unit."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"x")
    row = {"path": "model.safetensors", "size": plan["model"]["bytes"], "sha256": "0" * 64}
    config = {"source": f"file://{source}", "dir": str(tmp_path / "weights")}
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({**config, "manifest": {"files": [row]}}))
    assert fetch.main(["--config", str(path)]) != 0
    assert SHOWN in capsys.readouterr().err
