"""The page of a tune: whole in one file, a curve for each setting with numbers."""

from __future__ import annotations

import re

from tune_inputs import Machine, tuned_host

from kimi_prov.show.report import tune_html

HOSTILE = '<script>alert(1)</script>"><img src=x>'


def test_numbers_are_curves_and_every_candidate_is_in_the_table() -> None:
    host = {**tuned_host(), "lines": "kimi_threads: 4\n"}
    page = tune_html.render_page({"hosts": {"node1": host}})
    assert page.count('class="plot"') == 2
    for words in ("Requests at once", "Threads", "4 threads", "kimi_threads: 4", "wins"):
        assert words in page
    assert not re.search(r"<(script|link|img|iframe)|src=|@import|url\(", page)


def test_a_host_without_measurements_has_its_reason() -> None:
    page = tune_html.render_page({"hosts": {"node1": {"ok": False, "detail": "away"}}})
    assert "away" in page
    assert "<svg" not in page


def test_what_a_machine_says_is_text() -> None:
    host = {**tuned_host(machine=Machine(lambda *_: 10.0)), "note": HOSTILE, "detail": HOSTILE}
    host["candidates"][0]["reason"] = HOSTILE
    host["lines"] = HOSTILE
    page = tune_html.render_page({"hosts": {HOSTILE: host}})
    assert "<script" not in page
    assert "<img" not in page
