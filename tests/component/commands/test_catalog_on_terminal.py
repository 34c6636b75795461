"""What `kimi-prov catalog` shows on a terminal."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from on_terminal import OnTerminal

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands import catalog

if TYPE_CHECKING:
    from pathlib import Path


def rows(kind: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.collect(load_catalogue(), kind, None)["rows"]
    return found


def shown_at(columns: int, tmp_path: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": str(columns)}
    terminal = OnTerminal(["catalog", *words], tmp_path, environment)
    assert terminal.ends() == 0
    return terminal.plain


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_no_line_is_broken_and_no_column_lost(columns: int, tmp_path: Path) -> None:
    text = shown_at(columns, tmp_path)
    assert max(map(len, text.splitlines())) <= columns
    assert not any(line.endswith("...") for line in text.splitlines())
    words = set(re.split(r"[\s,;]+", text))
    for row in rows():
        assert set(row["name"].split()) <= words, row["name"]
        assert row["checked"] in words
    for title in (row["title"] for row in rows("broken")):
        assert set(re.split(r"[\s,;]+", title)) <= words, title


def test_a_head_is_broken_only_between_its_words(tmp_path: Path) -> None:
    lines = shown_at(80, tmp_path, "gpus").splitlines()
    assert lines[1].split()[-3:] == ["memory_", "bandwidth_", "compute_"]
    assert lines[2].split() == ["gb", "gb_s", "capability"]
    assert len(lines) >= 3 + len(rows("gpus"))


def test_one_name_is_broken_between_words_too(tmp_path: Path) -> None:
    text = shown_at(80, tmp_path, "gpus", "h200")
    assert max(map(len, text.splitlines())) <= 80
    [row] = catalog.collect(load_catalogue(), "gpus", "h200")["rows"]
    assert " ".join(row["source"].split()) in " ".join(text.split())
