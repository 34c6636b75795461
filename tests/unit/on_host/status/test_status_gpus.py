"""What the status reports of failing GPUs, with the readings that the metrics keep."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from gpu_answers import gpu_answer

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.probe import gpu_faults, gpu_load
from kimi_prov.on_host.status import gpus

if TYPE_CHECKING:
    from pathlib import Path


def list_ids(paths: Paths, **fields: str) -> list[str]:
    return [row["id"] for row in gpus.list_findings(paths, gpu_load.parse(gpu_answer(**fields)))]


def keep_errors(paths: Paths, *counts: int) -> None:
    now, kept = time.time(), None
    for ago, count in zip((120, 60), counts, strict=True):
        line = gpu_answer(ecc__errors__corrected__aggregate__total=str(count))
        kept = gpu_faults.add_reading(kept, gpu_load.parse(line), {}, now - ago)
    paths.metrics_state.parent.mkdir(parents=True)
    paths.metrics_state.write_text(json.dumps({gpu_faults.READINGS: kept}))


def test_a_machine_without_metrics_reports_what_one_reading_shows(tmp_path: Path) -> None:
    assert list_ids(Paths(tmp_path)) == []
    assert list_ids(Paths(tmp_path), remapped_rows__failure="Yes") == ["gpu.row_remap_failed"]


def test_a_storm_that_the_metrics_saw_is_reported(tmp_path: Path) -> None:
    keep_errors(Paths(tmp_path), 10, 10_000)
    assert list_ids(Paths(tmp_path)) == ["gpu.ecc_storm"]


def test_a_damaged_state_of_the_metrics_is_none(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.metrics_state.parent.mkdir(parents=True)
    for text in ("", "[]", "{", '{"gpu_readings": 3}'):
        paths.metrics_state.write_text(text)
        assert list_ids(paths) == []
