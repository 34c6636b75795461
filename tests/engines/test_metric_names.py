"""The recorded metrics of the engines are those that the pinned versions really have."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from engine_metrics import VLLM, families, of_sglang, of_vllm

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).resolve().parents[1] / "data" / "recordings" / "metrics"


def compare(name: str, text: str) -> None:
    file = RECORDED / f"{name}.txt"
    lines = re.findall(r"^(?:# TYPE |vllm:|sglang:).*\n", text, re.MULTILINE)
    kept = "".join(line for line in lines if "_created" not in line)
    if os.environ.get("KIMI_PROV_METRICS") == "write":
        file.write_text(kept)
    assert families(kept) == families(file.read_text())


@pytest.mark.parametrize("version", VLLM)
def test_vllm(version: str, tmp_path: Path) -> None:
    compare(f"vllm-{version}", of_vllm(version, tmp_path))


def test_sglang() -> None:
    compare("sglang-kt-0.7.2", of_sglang())
