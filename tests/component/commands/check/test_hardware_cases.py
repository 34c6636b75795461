"""Recordings of real people's machines get the answer that their case calls right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers import cases

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", cases.names("hardware"))
def test_a_recording_of_a_real_machine_gets_the_right_answer(name: str, tmp_path: Path) -> None:
    assert cases.find_faults(name, tmp_path) == []
