"""What a check says of money, loads and blocked machines: the same in every form, and once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from check_inputs import KNOWN, eight_h200, facts, read, speeds, target, two_h100

from kimi_prov.show.report import check, comparison, cost_text, plots
from kimi_prov.show.report.cost import Api, Use
from kimi_prov.show.report.writers import find_writer
from kimi_prov.sizing.load import Load

FORMS = pytest.mark.parametrize("form", ["text", "markdown", "html"])
DEAR = (Api("kimi-k2.5", "kimi-k2.5", 300, 3000, "made up: everything is cheaper"),)


def said(form: str, *targets: dict[str, Any], load: Load | None = None) -> str:
    """The words of a form, without its marks and line breaks."""
    page = find_writer(form)(check.build_document(targets, load))
    if form == "html":
        page = " ".join(read(page).text)
    return " ".join(re.sub(r"[\\\\*|]", " ", page).split())


def blocked(name: str = "blocked") -> dict[str, Any]:
    """A machine whose tokens would cost less than the API's, if it served."""
    found = facts(gpus=("H100 NVL 94GB", 95830, 2), driver="570.133.20", price={"hourly_usd": 1})
    known = replace(KNOWN, apis=DEAR)
    return target(name, found, speeds(48, 16, 7000, 300), known=known, engine="vllm")


def test_a_price_that_is_not_known_is_said_once_with_the_usual_rent() -> None:
    text = said("text", eight_h200("a", price=None), eight_h200("b"))
    assert "price unknown; such GPUs usually rent for $13.92 an hour cost" in text
    assert "price $26.00 an hour; $911,660 in 4 years" in text
    bought = said("text", eight_h200("a", price={"purchase_usd": 400000}), eight_h200("b"))
    assert re.search(r"price \$400,000 to buy; an hour \$[0-9.]+; \$[0-9,]+ in 4 years", bought)


@FORMS
def test_every_form_names_the_usual_rent_where_no_price_is_known(form: str) -> None:
    text = said(form, eight_h200(price=None))
    assert "usually rent for $13.92 an hour" in text
    assert "What a token costs is not known" not in text


@FORMS
def test_a_machine_without_a_price_is_named_where_costs_are_shown(form: str) -> None:
    text = said(form, eight_h200("dear"), eight_h200("unpriced", price=None))
    assert "Not shown here, for lack of a price: unpriced;" in text
    silent = target("silent", facts(price={"hourly_usd": 3}), speeds(None, 16, None, 1))
    silent["findings"].clear()
    lack = plots.describe_missing_costs(check.build_document([eight_h200(), silent]))
    assert lack == ["Not shown here, for lack of an estimate of speed: silent."]


@FORMS
def test_the_money_of_a_blocked_machine_is_not_praised(form: str) -> None:
    text = said(form, blocked())
    assert "Counted as if its blockers were fixed" in text
    assert "Once the blockers are fixed, cheaper than the API" in text
    assert not re.search(r"from [0-9.]+% use(?! once its blockers are fixed|[,.(]| \()", text)
    cells = {label: cells[0].text for label, cells in comparison.build_table([blocked()])}
    assert cells["Cheaper than the API"].endswith("once its blockers are fixed")


def test_a_block_of_text_says_it_too_and_says_blocked_once() -> None:
    text = said("text", blocked(), eight_h200())
    assert "cost Counted as if its blockers were fixed" in text
    assert "BLOCKED, blocked" not in said("text", two_h100())


@FORMS
def test_a_load_of_millions_of_tokens_is_written_out_and_its_columns_explained(form: str) -> None:
    text = said(form, eight_h200(), load=Load(tokens_per_day=12_345_678))
    assert "12,345,678 output tokens a day" in text
    assert "all machines that the load takes; speeds: of one of them" in text


def test_units_keep_their_letters() -> None:
    assert "$0.15 a kWh" in cost_text.describe_assumptions(
        [eight_h200(price={"purchase_usd": 1e5})]
    )


@FORMS
def test_a_machine_that_nobody_has_offered_is_judged_like_a_sheet(form: str) -> None:
    assert "Fits, with warnings" not in said(form, eight_h200(kind="suggested"))
    assert "FITS, WITH WARNINGS" not in said(form, eight_h200(kind="suggested"))


def test_the_api_that_is_compared_with_is_named() -> None:
    cheap = target(
        "a",
        facts(gpus=("H200 SXM", 143771, 8), price={"hourly_usd": 1}),
        speeds(48, 16, 7000, 300),
        known=replace(KNOWN, apis=(Api("another", None, 300, 3000, "made up"),)),
        use=Use(utilisation=1),
    )
    caption = plots.build_load_table(check.build_document([cheap])).caption
    assert "wins: cheaper than the API of another" in caption


def test_rings_are_explained_only_where_there_are_any() -> None:
    assert "Rings: where" not in said("html", eight_h200())
    assert "Rings: where" in said("html", blocked())
