"""The page of a bench: whole in one file, curves for a sweep, and nothing of a stranger's runs."""

from __future__ import annotations

import re
from typing import Any

import bench_inputs

from kimi_prov.acceptance import bench
from kimi_prov.show.report import bench_html, bench_markdown

SPEEDS = ((1, 100.0, 95.0), (4, 88.0, 320.0), (16, 60.0, 840.0))
HOSTILE = '<script>alert(1)</script>"><img src=x>'


def sweep(factor: float = 1.0, **asked: Any) -> dict[str, Any]:
    levels = [
        bench_inputs.loaded(bench_inputs.level(n, d * factor, a * factor, 900.0))
        for n, d, a in SPEEDS
    ]
    return bench_inputs.result(*levels, asked=asked or {"rounds": 3})


def document(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "kimi-prov/bench/v1", "ok": True, "hosts": hosts}


def twice() -> dict[str, Any]:
    now = sweep()
    return {**now, "last": bench.compare_results(sweep(1.2), now)}


def test_a_sweep_is_two_curves_beside_the_prediction_and_the_last_time() -> None:
    page = bench_html.render_page(document(node1=twice()))
    assert page.count('class="plot"') == 2
    for name in ("this time", "the last time", "predicted"):
        assert name in page
    assert "-16.7%" in page
    assert "0.339" in page  # tokens a joule


def test_nothing_is_fetched_when_it_is_opened() -> None:
    page = bench_html.render_page(document(node1=twice()))
    assert not re.search(r"<(script|link|img|iframe)|src=|@import|url\(", page)


def test_a_single_load_and_a_host_without_one_have_no_curve() -> None:
    alone = bench_inputs.result(bench_inputs.level(1, 9.0, 9.0, 9.0))
    away = {"ok": False, "detail": "away", "stand_ins": []}
    page = bench_html.render_page(document(one=alone, two=away))
    assert "<svg" not in page
    assert "Not measured: away" in page


def test_what_a_machine_says_is_text() -> None:
    found = twice()
    found["machine"]["processor"] = found["model"] = HOSTILE
    found["stand_ins"] = [HOSTILE]
    found["last"]["differs"] = [HOSTILE]
    page = bench_html.render_page(document(**{HOSTILE: found}))
    assert "<script" not in page
    assert "<img" not in page
    text = bench_markdown.format_page(document(**{HOSTILE: found}))
    assert "<script>" not in text


def test_markdown_has_the_same_tables() -> None:
    text = bench_markdown.format_page(document(node1=twice()))
    assert "| 16 | 32 |" in text
    assert "| 16 at once | 1,010 tokens/s | 840 tokens/s | -16.7% |" in text
