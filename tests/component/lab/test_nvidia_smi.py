"""The stand-in for nvidia-smi: what it answers is read as the recording itself is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kimi_prov.errors import UserError
from kimi_prov.facts import recording
from kimi_prov.lab import nvidia_smi
from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.probe import nvidia_smi as read_nvidia
from kimi_prov.on_host.probe.gpu import Nvidia
from kimi_prov.on_host.system.machine import Machine

H200 = Path(__file__).resolve().parents[2] / "data" / "recordings" / "h200-x8"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "nvidia-smi"
    file.write_text(nvidia_smi.make_program(H200))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return file


def test_the_probe_finds_the_recorded_cards_by_it(tool: Path) -> None:
    """On a machine without the driver's files in /proc, as a container is."""

    class Here(Machine):
        def which(self, command: str) -> str | None:
            return str(tool) if command == "nvidia-smi" else None

    told = Nvidia(Here())
    recorded = recording.read_recording(H200)
    assert told.present
    for mine, theirs in zip(told.gpus(), recorded["gpus"], strict=True):
        for key in ("model", "memory_bytes", "compute_capability", "fabric_state", "numa_node"):
            assert mine[key] == theirs[key]
    asked = subprocess.run([tool, "-q", "-x"], capture_output=True, text=True, check=True)
    assert read_nvidia.parse_query(asked.stdout) == read_nvidia.parse_query(
        (H200 / "nvidia-smi-q.xml").read_text()
    )


def test_a_unit_that_waits_for_gpus_finds_them_free(tool: Path) -> None:
    assert ready.main(["--gpus", "0,1,2,3,4,5,6,7", "--patience", "0"]) == 0


def test_what_was_not_recorded_is_an_error_and_not_an_answer(tool: Path) -> None:
    asked = subprocess.run([tool, "mig", "-lgi"], capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert "stand-in" in asked.stderr
    assert "stand-in" in subprocess.run([tool], capture_output=True, text=True, check=True).stdout


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recorded nvidia-smi"):
        nvidia_smi.make_program(tmp_path)
