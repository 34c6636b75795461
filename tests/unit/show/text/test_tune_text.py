"""The tune document as text: what is said before, and what was measured."""

from __future__ import annotations

import closed_form
from tune_inputs import Machine, preview_of_host, tuned_host

from kimi_prov.show.text import tune


def test_what_would_be_tried_is_said_with_the_time_and_what_clients_notice() -> None:
    text = tune.format_preview({"hosts": {"node1": preview_of_host()}})
    assert "2 requests at once" in text
    assert "4 threads" in text
    assert "moe-kernels" in text
    assert "starts of the engine" in text
    assert "no answer from this machine" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_every_candidate_has_its_rates_and_the_winner_its_lines() -> None:
    host = {**tuned_host(), "lines": "# a tune\nkimi_threads: 4\n"}
    document = {"schema": "kimi-prov/tune/v1", "ok": True, "hosts": {"node1": host}}
    closed_form.validate(document, "tune")
    text = tune.format_text(document)
    assert "4 threads" in text
    assert "wins" in text
    assert "what was applied serves again" in " ".join(text.split())
    assert "kimi_threads: 4" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_tune_without_a_winner_says_that_nothing_better_was_found() -> None:
    text = tune.format_text({"hosts": {"node1": tuned_host(machine=Machine(lambda *_: 10.0))}})
    assert "nothing better was found" in text


def test_a_host_that_was_not_reached_has_its_reason() -> None:
    away = {"ok": False, "detail": "away"}
    assert "node1  away" in tune.format_text({"hosts": {"node1": away}})
