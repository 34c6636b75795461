"""The page of what was proven on real GPUs, made from reports and what is noted beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gpu_reports
import yaml

if TYPE_CHECKING:
    from pathlib import Path

NOTE = {"title": "A lent machine", "served": "vLLM", "commit": "abc1234", "stood_in": []}
OUTCOMES = {
    "passed": {"outcome": "passed"},
    "failed": {"outcome": "failed", "reason": "a | b"},
    "not reached": {"outcome": "failed", "reason": "Failed: not run: the time was over"},
}


def write(folder: Path, name: str, date: str, *rows: tuple[str, str], **figures: Any) -> None:
    (folder / name).mkdir()
    report = {
        "schema": "kimi-prov/gpu-report/v1",
        "date": date,
        "cards": [{"name": "NVIDIA X", "memory.total": "80 MiB", "driver_version": "580.1"}] * 2,
        "processor": {"name": "Xeon"},
        "tests": [
            {"test": test, "claim": f"{test}.", "seconds": 2, **OUTCOMES[outcome]}
            for test, outcome in rows
        ],
        "figures": {"engine": "vllm 1", **figures},
    }
    (folder / name / "report.json").write_text(json.dumps(report))
    (folder / name / "note.yaml").write_text(yaml.safe_dump(NOTE))


def test_a_claim_counts_by_its_last_run_and_each_report_has_a_row(tmp_path: Path) -> None:
    write(tmp_path, "older", "2026-01-01", ("It boots", "failed"), ("It ends", "passed"))
    write(
        *(tmp_path, "newer", "2026-11-22"),
        *(("It boots", "passed"), ("It stays", "failed"), ("It ends", "not reached")),
        apply_s=61,
    )
    text = "\n".join(gpu_reports.lines(tmp_path))
    assert "| vLLM | 2x X | vllm 1 | 2 of 3 | 2026-01-01 to 2026-11-22 |" in text
    assert "- It stays. (vLLM, 2026-11-22): a | b" in text
    assert "- It boots." not in text
    newer = "| 2026-11-22 | A lent machine | 2x X | vllm 1 | 1 of 3 | 61 | abc1234 | `newer` |"
    older = "| 2026-01-01 | A lent machine | 2x X | vllm 1 | 1 of 2 |  | abc1234 | `older` |"
    assert text.index(newer) < text.index(older)
    assert "| It boots. | passed | 2 | `newer` |" in text
    assert "| It ends. | passed | 2 | `older` |" in text


def test_a_run_without_its_gpus_names_the_processor(tmp_path: Path) -> None:
    write(tmp_path, "one", "2026-11-22", engine="vllm 1 for CPUs, kimi-kt-experts")
    assert gpu_reports.reports(tmp_path)[0].cards == "Xeon"


def test_no_report_is_no_row(tmp_path: Path) -> None:
    assert [line for line in gpu_reports.lines(tmp_path) if line.startswith("| 2")] == []
