"""Environments whose python can import a version of vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import engine_environment
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def uv() -> str:
    """Path of the environment's own uv."""
    return engine_environment.UV


@pytest.fixture(scope="module")
def parser_of() -> Callable[[str], Path]:
    """The environment of a version."""
    return engine_environment.environment
