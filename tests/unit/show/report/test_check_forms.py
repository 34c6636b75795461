"""One check document in every form: nothing left out, nothing let through."""

from __future__ import annotations

import itertools
import re

import closed_form
import pytest
from check_inputs import GIB, document, eight_h200, facts, no_gpu, read, speeds, target, two_h100

from kimi_prov.show.report import capacity, check, comparison, findings, memory_bars, verdict
from kimi_prov.show.report.writers import find_writer
from kimi_prov.show.text import formats


def unspaced(text: str) -> str:
    return re.sub(r"\s+", "", text).lower()


def test_the_document_satisfies_its_schema_and_the_plan_its_own() -> None:
    found = document()
    closed_form.validate(found, "check")
    for row in found["targets"]:
        closed_form.validate(row["plan"], "plan")


def test_ok_is_false_where_any_target_is_blocked() -> None:
    assert document()["ok"] is False
    assert check.build_document([eight_h200()])["ok"] is True


def test_names_become_unique() -> None:
    found = check.build_document([eight_h200("a"), eight_h200("a"), eight_h200("a")])
    assert [row["name"] for row in found["targets"]] == ["a", "a (2)", "a (3)"]


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_every_form_names_targets_verdicts_blockers_and_how_to_mend_them(form: str) -> None:
    page = find_writer(form)(document())
    flat = unspaced("".join(read(page).text) if form == "html" else page.replace("\\", ""))
    for words in ("vendor-a", "vendor-b", "blocked", "driver.branch", "kimi-k2.5", "API"):
        assert unspaced(words) in flat, words
    assert unspaced("install NVIDIA's driver, branch 580") in flat
    assert "48.1(" in flat
    assert unspaced("Self-hosting loses at any use") in flat


def test_text_keeps_to_80_columns_and_to_printable_characters() -> None:
    evil = no_gpu("bad\x1b[31m\u202ename\n")
    page = find_writer("text")(check.build_document([eight_h200(), evil]))
    assert max(map(len, page.splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_markdown_leaves_a_strangers_text_harmless() -> None:
    page = find_writer("markdown")(check.build_document([no_gpu("a | b <b>*x*</b>")]))
    assert "a \\| b \\<b\\>\\*x\\*\\</b\\>" in page
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    assert len(tables) >= 4
    for found in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in found.splitlines()}) == 1


def test_html_is_one_file_without_script_that_fetches_nothing() -> None:
    page = find_writer("html")(document())
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in reader.tags}
    for _, given in reader.tags:
        assert not any(name.startswith("on") for name in given)
        assert (given.get("href") or "#").startswith("#")
        assert "src" not in given
    assert "url(" not in page
    assert "http" not in re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)


def test_html_can_be_read_with_a_keyboard_and_a_screen_reader() -> None:
    reader = read(find_writer("html")(document()))
    given = dict(reader.tags)
    assert given["html"]["lang"] == "en"
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in reader.tags:
        if (attrs.get("href") or "").startswith("#"):
            assert attrs["href"][1:] in ids
        if "aria-labelledby" in attrs:
            assert attrs["aria-labelledby"] in ids
    for tag, attrs in reader.tags:
        if tag == "svg":
            assert attrs.get("aria-hidden") == "true" or attrs.get("aria-label")
        if tag == "th":
            assert attrs.get("scope") in {"row", "col", "colgroup"}
        if attrs.get("class") == "scroll":
            assert attrs["tabindex"] == "0"
            assert attrs["role"] == "region"
            assert attrs["aria-label"]
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_many_targets_are_set_side_by_side_in_one_table() -> None:
    page = find_writer("html")(check.build_document([eight_h200(f"m{n}") for n in range(9)]))
    assert page.count('<table class="sides">') == 1


def test_bars_add_up_to_the_memory_and_show_what_does_not_fit() -> None:
    for bar in memory_bars.build_bars(eight_h200()):
        assert sum(part.size for part in bar.segments) == bar.total
    short = memory_bars.build_bars(two_h100())[0]
    assert short.needed > short.total
    assert "too little" in find_writer("html")(check.build_document([two_h100()]))
    assert "TOO MUCH" in find_writer("text")(check.build_document([two_h100()]))


def test_gpus_that_the_plan_does_not_use_are_a_bar_of_their_own() -> None:
    found = target("six", facts(gpus=("B300 SXM", 275040, 6)))
    bars = memory_bars.build_bars(found)
    assert [bar.label for bar in bars][:2] == ["GPU 0 to 3, each", "GPU 4, 5, each, not used"]


def test_parts_of_host_memory_come_from_the_plan_where_it_names_them() -> None:
    found = eight_h200()
    found["plan"]["memory"]["host_parts"] = [
        {"kind": "weights", "name": "Experts", "bytes": 10 * GIB},
        {"kind": "other", "name": "Reserve", "bytes": 2 * GIB},
    ]
    found["plan"]["memory"]["host_ram_required_bytes"] = 12 * GIB
    found["plan"]["ram_disk"]["enabled"] = False
    kinds = [(part.kind, part.label) for part in memory_bars.build_bars(found)[-1].segments]
    assert kinds == [("weights", "Experts"), ("overhead", "Reserve"), ("free", "Free")]


def test_the_cache_is_shared_by_requests_of_each_length() -> None:
    found = eight_h200()
    points = dict(capacity.compute_capacity(found))
    assert points[4096] == capacity.count_cache_tokens(found) // 4096
    assert max(points) == found["plan"]["model"]["context_max"] == 262144
    cards = facts(gpus=("B300 SXM", 275040, 8))
    short = target("b300", cards, model="kimi-k2-instruct")
    assert capacity.count_cache_tokens(short) > 262144
    assert max(dict(capacity.compute_capacity(short))) == 131072


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0123, "0.0123"), (9.996, "10.0"), (48.12, "48.1"), (1234.5, "1,230")],
)
def test_figures_keep_three_significant_digits(value: float, shown: str) -> None:
    assert formats.format_figure(value) == shown


def test_what_is_not_known_is_called_unknown() -> None:
    found = target(
        "quiet",
        facts(),
        speeds(None, 16, None, 1) | {"load_s": speeds(1, 1, None, 1)["prefill_tok_s"]},
    )
    cells = {label: cells[0].text for label, cells in comparison.build_table([found])}
    assert cells["Decode, each of 16 at once, tokens/s"] == "unknown"
    assert cells["Cost of an hour"] == "unknown"
    assert cells["Price"] == "unknown; such GPUs usually rent for $13.92 an hour"
    for form in ("text", "markdown", "html"):
        assert "None" not in find_writer(form)(check.build_document([found]))


def test_a_blocker_says_what_mending_costs_where_that_is_known() -> None:
    found = two_h100()
    for row, known in zip(found["findings"], (0, 12000), strict=False):
        row |= {"cost_usd": known, "cost_basis": "six more cards"}
    page = find_writer("text")(check.build_document([found]))
    assert "costs: work, nothing to buy" in page
    assert "costs: about $12,000: six more cards" in page


def test_what_blocks_several_machines_is_told_once() -> None:
    ((names, _),) = findings.list_blockers([no_gpu("a"), no_gpu("b")])
    assert names == "a, b"


def test_an_engine_that_apply_does_not_install_is_named_in_the_verdict() -> None:
    found = eight_h200()
    assert "by hand" not in verdict.describe_verdict(found)
    row = {"id": "engine.not_provisioned", "severity": "blocker", "title": "Not installed"}
    found["findings"] = [row, *found["findings"]]
    said = verdict.describe_verdict(found)
    assert said.startswith("Serves kimi-k2.5")
    assert "by hand alone" in said
