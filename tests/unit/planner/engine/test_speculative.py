"""A draft model: fetched like any weights, counted in memory, refused where it cannot work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import HUGE, blocked_by, found, gpu_facts, lab_facts, plan

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

DRAFT = HUGE | {"speculative_model": "kimi-k2.5-eagle3-mla"}


def config(document: dict[str, Any]) -> dict[str, Any]:
    argv = document["instances"][0]["argv"]
    return dict(json.loads(argv[argv.index("--speculative-config") + 1]))


def test_a_draft_is_planned_fetched_and_counted() -> None:
    without, document = plan(gpu_facts(), **HUGE), plan(gpu_facts(), **DRAFT)
    assert blocked_by(document) == set()
    folder = "/srv/kimi/models/kimi-k2.5-eagle3-mla/main"
    assert config(document) == {
        "model": folder,
        "method": "eagle3",
        "num_speculative_tokens": 3,
    }
    assert document["weights"]["draft"] == {
        "source": "hf://lightseekorg/kimi-k2.5-eagle3-mla@main",
        "manifest": None,
        "dir": folder,
        "bytes": 6_000_000_000,
    }
    before, after = without["memory"], document["memory"]
    assert after["weights_bytes_per_gpu"] - before["weights_bytes_per_gpu"] == 750_000_000
    assert after["kv_bytes_per_token"] - before["kv_bytes_per_token"] == 576 * 2
    assert document["disk"]["required_bytes"] - without["disk"]["required_bytes"] == 6_000_000_000
    assert found(document, "engine.draft_unproven")
    assert found(document, "weights.draft_unpinned")[0]["severity"] == "warning"
    assert without["weights"]["draft"] is None


def test_a_pinned_draft_from_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "draft.json"
    row = {"path": "model.safetensors", "size": 5, "sha256": "0" * 64}
    file.write_text(json.dumps({"files": [row]}))
    document = plan(
        gpu_facts(),
        draft_weights_source="file:///srv/draft",
        draft_weights_manifest=str(file),
        speculative_tokens=4,
        **DRAFT,
    )
    assert document["weights"]["draft"]["manifest"] == {"files": [row]}
    assert document["weights"]["draft"]["bytes"] == 5
    assert config(document)["num_speculative_tokens"] == 4
    assert not found(document, "weights.draft_unpinned")


def test_a_draft_of_another_model_is_refused() -> None:
    newer = DRAFT | {"speculative_model": "kimi-k2.6-eagle3-mla"}
    older = newer | {"engine_version": "0.19.1"}
    assert "engine.draft" in blocked_by(plan(gpu_facts(), **older))  # it is too old for it
    assert "engine.draft_model" in blocked_by(plan(gpu_facts(), **newer))


def test_an_engine_that_cannot_is_refused() -> None:
    assert "engine.draft" in blocked_by(plan(gpu_facts(), engine_version="0.15.0", **DRAFT))
    assert "engine.draft" in blocked_by(plan(lab_facts(), speculative_model="kimi-k2.5-eagle3-mla"))


def test_an_unknown_draft_is_refused_with_its_neighbour() -> None:
    with pytest.raises(UserError, match="eagle3-mla"):
        plan(gpu_facts(), **(DRAFT | {"speculative_model": "kimi-k2.5-eagle3"}))
