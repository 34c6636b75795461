"""What `kimi-prov catalog` shows."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.cli import cli
from kimi_prov.commands import catalog
from kimi_prov.show.text import catalog as catalog_text


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
    document = catalog.collect(load_catalogue(), kind, name)
    assert [row["name"] for row in document["rows"]] == rows
    text = catalog_text.format_text(document)
    assert "source: " in text
    assert "confidence: " in text


def test_an_engine_is_found_with_and_without_its_version() -> None:
    every = catalog.collect(load_catalogue(), "engines", "vllm")["rows"]
    assert len(every) > 3
    [one] = catalog.collect(load_catalogue(), "engines", "vllm-cuda-0.19.1")["rows"]
    assert one["version"] == "0.19.1"


def rows(kind: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.collect(load_catalogue(), kind, None)["rows"]
    return found


def test_a_pipe_gets_each_row_whole_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cli.main(args=["catalog", "broken"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()[2:]
    for row, line in zip(rows("broken"), lines, strict=True):
        assert line.split()[0] == row["name"]
        assert line.endswith(row["title"])
