"""The drop-ins of a candidate: only for engines' units, and gone without a rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.tune import overlay

if TYPE_CHECKING:
    from pathlib import Path

UNIT = "kimi-serve@0.service"


@pytest.fixture(autouse=True)
def reloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(overlay, "run", lambda *words: calls.append(words))
    return calls


def test_a_candidate_is_put_in_place_and_removed_whole(
    tmp_path: Path, reloads: list[tuple[str, ...]]
) -> None:
    overlay.put({UNIT: "[Service]\nExecStart=\n"}, tmp_path)
    assert (tmp_path / f"{UNIT}.d" / overlay.NAME).read_text() == "[Service]\nExecStart=\n"
    assert overlay.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not overlay.remove(tmp_path)
    assert reloads == [("systemctl", "daemon-reload")] * 2


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    other = tmp_path / f"{UNIT}.d" / "50-own.conf"
    other.parent.mkdir()
    other.touch()
    overlay.put({UNIT: ""}, tmp_path)
    overlay.remove(tmp_path)
    assert other.exists()


@pytest.mark.parametrize("unit", ["ssh.service", "../kimi-serve@0.service", "kimi-rank.service"])
def test_a_unit_that_is_no_engine_of_one_host_is_refused(tmp_path: Path, unit: str) -> None:
    with pytest.raises(HostError, match="no unit of an engine"):
        overlay.put({unit: ""}, tmp_path)
    assert list(tmp_path.iterdir()) == []
