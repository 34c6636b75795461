"""The command line in this process; what machines answer comes from the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import command_line
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kimi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> command_line.CommandLine:
    """The command line of a user whose home is empty."""
    return command_line.make(tmp_path, monkeypatch)
