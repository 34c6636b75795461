"""A site's own measured rows: they count in score and fit, and only with the site's catalogue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import rows, score, stored

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.planner.throughput.calibrate import Model

ROW = {
    "id": "b0123456789",
    "model": "Kimi-K2.5",
    "quant": "int4",
    "engine": "vllm 0.19.1",
    "gpus": "8x H200 SXM",
    "flags": "TP8",
    "concurrency": 1,
    "context": "8192/1024",
    "decode_tok_s_per_request": 100.0,
    "measured": True,
    "confidence": "high",
    "source": "our own hall",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "speeds.yaml").write_text(yaml.safe_dump({"rows": [ROW]}))
    monkeypatch.setenv("KIMI_PROV_CATALOG", str(tmp_path))
    return tmp_path


def scaled(factor: float) -> dict[str, Model]:
    """Our coefficients, the share of bandwidth that GPUs reach times a factor."""
    text = json.loads(stored.COEFFICIENTS.read_text())
    text["gpu"]["values"]["memory_share"] *= factor
    return stored._parse_models(text)


def test_a_sites_rows_are_scored_beside_ours(site: Path) -> None:
    ours, _ = rows.read_file(stored.ROWS)
    known, _ = rows.read_files(stored.list_row_files())
    assert [case.author for case in known if case not in ours] == ["our own hall"]


def test_a_row_that_both_have_counts_once(site: Path) -> None:
    (site / "speeds.yaml").write_text(stored.ROWS.read_text())
    ours, _ = rows.read_file(stored.ROWS)
    assert len(rows.read_files(stored.list_row_files())[0]) == len(ours)


def test_without_a_site_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIMI_PROV_CATALOG", raising=False)
    assert stored.list_row_files() == [stored.ROWS]


def test_a_refit_is_the_sites_own_and_its_predictions_use_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored.COEFFICIENTS.read_bytes()
    assert stored.write_models(scaled(0.5)) == site / "speed_coefficients.json"
    assert stored.COEFFICIENTS.read_bytes() == before
    own = stored.load_models()["gpu"].fit.values["memory_share"]
    monkeypatch.delenv("KIMI_PROV_CATALOG")
    assert own == pytest.approx(
        0.5 * stored.load_models()["gpu"].fit.values["memory_share"], rel=1e-4
    )


@pytest.mark.parametrize("broken", ["{}", "[1]", '{"gpu": {"values": {}}}', "not json"])
def test_coefficients_of_another_version_are_refused(site: Path, broken: str) -> None:
    (site / "speed_coefficients.json").write_text(broken)
    with pytest.raises(UserError, match=r"speed_coefficients\.json") as error:
        stored.load_models()
    assert "--write" in str(error.value.fix)


def test_a_broken_file_of_a_site_ends_the_score_with_2(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "speeds.yaml").write_text("rows: 7")
    assert score.main([]) == 2
    assert "no list `rows`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("concurrency", "eight"),
        ("concurrency", 0.0),
        ("sockets", "two"),
        ("decode_tok_s_per_request", "fast"),
        ("decode_tok_s_per_request", -5),
        ("prefill_tok_s", True),
        ("cpu_mem_measured_gb_s", [400]),
    ],
)
def test_a_figure_that_is_none_is_refused_with_its_row_and_key(
    site: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "speeds.yaml").write_text(yaml.safe_dump({"rows": [{**ROW, key: value}]}))
    assert score.main([]) == 2
    told = capsys.readouterr().err
    assert f"row {ROW['id']}: {key} is {value!r}, wanted a number above 0" in told
    assert f"correct {key}" in told
