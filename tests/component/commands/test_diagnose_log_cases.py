"""Logs of real people's engines get the cause and the fix that their case calls right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers import cases

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", cases.names("log"))
def test_a_log_of_a_real_machine_gets_the_right_answer(name: str, tmp_path: Path) -> None:
    assert cases.find_faults(name, tmp_path) == []
