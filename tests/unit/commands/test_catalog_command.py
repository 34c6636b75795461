"""What `kimi-prov catalog` shows."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from on_terminal import OnTerminal

from kimi_prov.catalog.loader import load
from kimi_prov.cli import cli
from kimi_prov.commands import catalog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "name", "rows"),
    [
        ("models", "Kimi-K2.5", ["kimi-k2.5"]),
        ("cpus", "8468", ["Xeon Platinum 8468"]),
        ("gpus", "h200", ["H200 SXM"]),
        ("formats", "INT4", ["int4"]),
        ("flags", "--swap-space", ["--swap-space"]),
        ("flags", "swap-space", ["--swap-space"]),
        ("flags", "kt-cpuinfer", ["ktransformers kt"]),
        ("systems", "debian-12", ["debian-12"]),
        ("pythons", "3.11.18", ["cpython-3.11.18-linux-x86_64-gnu"]),
        ("web", "open-webui", ["open-webui"]),
        ("pythons", "3.11", ["cpython-3.11.18-linux-x86_64-gnu"]),
        ("drivers", "marlin-ptx", ["marlin-ptx"]),
        ("broken", "kt-no-gpu", ["kt-no-gpu"]),
        ("prices", "gemini-3-pro", ["gemini-3-pro"]),
    ],
)
def test_one_name_shows_its_rows_with_their_source(kind: str, name: str, rows: list[str]) -> None:
    document = catalog.show(load(), kind, name)
    assert [row["name"] for row in document["rows"]] == rows
    text = catalog.text(document)
    assert "source: " in text
    assert "confidence: " in text


def test_an_engine_is_found_with_and_without_its_version() -> None:
    every = catalog.show(load(), "engines", "vllm")["rows"]
    assert len(every) > 3
    [one] = catalog.show(load(), "engines", "vllm-cuda-0.19.1")["rows"]
    assert one["version"] == "0.19.1"


def rows(kind: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.show(load(), kind, None)["rows"]
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
    [row] = catalog.show(load(), "gpus", "h200")["rows"]
    assert " ".join(row["source"].split()) in " ".join(text.split())


def test_a_pipe_gets_each_row_whole_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cli.main(args=["catalog", "broken"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()[2:]
    for row, line in zip(rows("broken"), lines, strict=True):
        assert line.split()[0] == row["name"]
        assert line.endswith(row["title"])
