"""The query of what GPUs are at now, asked of programs that answer as nvidia-smi does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_answers import gpu_answer

from kimi_prov.on_host.probe import gpu_load

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 600.0
# Each question is a line of `asked` beside the program.
PROGRAM = """#!/bin/sh
echo "$1" >> {folder}/asked
case ",${{1#*=}}," in *,{unknown},*)
  echo 'Field "{unknown}" is not a valid field to query.'; exit 2 ;;
esac
{answer}
"""


class Smi:
    """A program in PATH that answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, answer: str, unknown: str = "no.such") -> None:
        file = self.folder / "nvidia-smi"
        file.write_text(PROGRAM.format(folder=self.folder, answer=answer, unknown=unknown))
        file.chmod(0o755)

    def asked(self) -> int:
        return len((self.folder / "asked").read_text().splitlines())


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Smi(tmp_path)


def test_a_driver_of_today_is_asked_once(smi: Smi) -> None:
    smi.install(f"echo '{gpu_answer()}'")
    cards, problem = gpu_load.read(PATIENCE_S)
    assert cards is not None
    assert (cards[0].name, cards[0].throttled, problem) == ("NVIDIA H100 80GB HBM3", (), "")
    assert smi.asked() == 1


def test_a_driver_before_535_knows_the_reasons_by_their_first_name(smi: Smi) -> None:
    hot = gpu_answer(clocks_event_reasons__active="0x0000000000000048")
    smi.install(f"echo '{hot}'", unknown=gpu_load.REASONS[0])
    cards, _ = gpu_load.read(PATIENCE_S)
    assert cards is not None
    assert cards[0].throttled == ("hw_slowdown", "hw_thermal_slowdown")


@pytest.mark.parametrize("field", gpu_load.COLUMNS[2:])
def test_a_field_that_a_driver_does_not_know_spoils_no_other(smi: Smi, field: str) -> None:
    columns = (*gpu_load.COLUMNS, gpu_load.REASONS[0])
    values = gpu_answer(remapped_rows__failure="Yes").split(", ")
    del values[columns.index(field)]
    smi.install(f"echo '{', '.join(values)}'", unknown=field)
    cards, problem = gpu_load.read(PATIENCE_S)
    assert problem == ""
    assert cards is not None
    assert cards[0].row_remap_failed is (None if field == "remapped_rows.failure" else True)
    assert cards[0].throttled == ()
    assert smi.asked() == 2


def test_a_tool_that_knows_no_field_is_not_asked_forever(smi: Smi) -> None:
    smi.install("echo 'Field \"index\" is not a valid field to query.'; exit 2")
    cards, problem = gpu_load.read(PATIENCE_S)
    assert cards is None
    assert "index" in problem
    assert smi.asked() == 1


def test_what_it_says_is_told_and_it_is_not_asked_again(smi: Smi) -> None:
    smi.install("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert gpu_load.read(PATIENCE_S) == (
        None,
        "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
    )
    assert smi.asked() == 1


def test_no_cards_and_no_nvidia_smi_are_none(
    smi: Smi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi.install("echo 'No devices were found'")
    assert gpu_load.read(PATIENCE_S) == ([], "")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert gpu_load.read(PATIENCE_S) == ([], "")
