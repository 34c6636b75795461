"""The page of what was proven on real GPUs, made from a report and what is noted beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpu_reports
import yaml

if TYPE_CHECKING:
    from pathlib import Path

REPORT = {
    "schema": "kimi-prov/gpu-report/v1",
    "date": "2026-11-22",
    "kernel": "6.18.44",
    "cards": [{"name": "NVIDIA X", "memory.total": "80 MiB", "driver_version": "580.1"}] * 2,
    "tests": [
        {"test": "a", "claim": "It boots.", "outcome": "passed", "seconds": 1.5},
        {"test": "b", "claim": "It ends.", "outcome": "failed", "seconds": 2, "reason": "a | b"},
    ],
    "figures": {"engine": "vllm 1", "torch": "2", "python": "3.12", "apply_s": 61, "bench": {}},
}
NOTE = {"title": "A lent machine", "commit": "abc1234", "stood_in": ["no driver was installed"]}


def test_a_report_says_what_passed_what_failed_and_what_stood_in(tmp_path: Path) -> None:
    for name, date in (("older", "2026-01-01"), ("newer", "2026-11-22")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps({**REPORT, "date": date}))
        (tmp_path / name / "note.yaml").write_text(yaml.safe_dump(NOTE))
    text = "\n".join(gpu_reports.lines(tmp_path))
    assert text.index("2026-11-22") < text.index("2026-01-01")
    assert "| cards | 2x NVIDIA X, 80 MiB each |" in text
    assert "| engine | vllm 1, torch 2, Python 3.12 |" in text
    assert "| It boots. | passed | 1.5 |" in text
    assert "| It ends. | failed: a \\| b | 2 |" in text
    assert "- no driver was installed" in text
    assert "`apply`, engine's environment, weights and start included | 61 |" in text


def test_no_report_is_no_section(tmp_path: Path) -> None:
    assert gpu_reports.lines(tmp_path) == []
