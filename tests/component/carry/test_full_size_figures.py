"""What a test of Kimi's own size measured is kept before it ends, with its commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))
import gpu_report


def test_a_figure_is_kept_before_its_test_ends(tmp_path):
    gpu_report.Report(tmp_path).figure(h100x8={"start_s": 325})
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["figures"] == {"h100x8": {"start_s": 325}}
    assert "325" in (tmp_path / "report.txt").read_text()
