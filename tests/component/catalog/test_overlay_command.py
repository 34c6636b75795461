"""`kimi-prov catalog` and a site's own rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kimi_prov.catalog.loader import OVERLAY
from kimi_prov.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

CARD = """
gpus:
  - name: H300 SXM
    vendor: nvidia
    memory_gb: 288
    bandwidth_gb_s: 9000
    tflops_bf16: 2500
    compute_capability: "11.0"
    nvlink_gb_s: 1800
    nvlink_links: 18
    nvswitch: true
    pcie_gen: 6
    pcie_gb_s: 100
    source: a vendor's letter
    confidence: low
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def run(tmp_path: Path):
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from kimi_prov.cli import main; main()"
        environment = {k: v for k, v in os.environ.items() if k != OVERLAY}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    return call


def test_the_command_shows_a_site_s_rows(tmp_path: Path, run) -> None:
    folder = write(tmp_path, gpus=CARD)
    shown = run("catalog", "gpus", "H300 SXM", "--catalog", str(folder), "--format", "json")
    assert shown.returncode == 0, shown.stderr
    [row] = json.loads(shown.stdout)["rows"]
    assert (row["name"], row["source"]) == ("H300 SXM", "a vendor's letter")
    assert run("catalog", "gpus", "H300 SXM").returncode == ExitCode.BAD_INPUT


def test_the_command_refuses_what_it_does_not_know(run) -> None:
    for arguments, near in ((("gpu",), "gpus"), (("cpus", "EPYC 9664"), "EPYC 9654")):
        done = run("catalog", *arguments)
        assert done.returncode == ExitCode.BAD_INPUT
        assert not done.stdout
        assert "did you mean" in done.stderr
        assert near in done.stderr


def test_the_command_writes_a_file(tmp_path: Path, run) -> None:
    file = tmp_path / "out.txt"
    assert run("catalog", "drivers", "--output", str(file)).returncode == 0
    assert "marlin-ptx" in file.read_text()
