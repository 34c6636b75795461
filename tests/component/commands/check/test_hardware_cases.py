"""Machines, sheets and models of real people get the answer that their case calls right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers import cases

if TYPE_CHECKING:
    from pathlib import Path


KINDS = ("hardware", "sheet", "model")


@pytest.mark.parametrize("name", [name for kind in KINDS for name in cases.names(kind)])
def test_a_case_of_a_machine_gets_the_right_answer(name: str, tmp_path: Path) -> None:
    assert cases.find_faults(name, tmp_path) == []
