"""When each row was last checked, and what is only announced."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING

import closed_form
import pytest

from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.catalog.model_bytes import count_checkpoint_bytes, count_state_bytes
from kimi_prov.commands import catalog
from kimi_prov.errors import UserError
from kimi_prov.show.report.prices import find_prices
from kimi_prov.show.text import catalog as catalog_text

if TYPE_CHECKING:
    from pathlib import Path

# The day on which this catalogue was begun: no row was checked before it.
BEGUN = datetime.date(2026, 11, 1)
ASSUMPTION = "{name: electricity, value: 0.3, unit: USD per kWh, source: our bill, confidence: high"


def rows(kind: str | None = None) -> list[dict]:
    return catalog.collect(load_catalogue(), kind, None)["rows"]


def test_every_row_has_a_source_and_a_day() -> None:
    found = rows()
    assert len(found) > 150
    for row in found:
        where = f"{row['part']} {row['name']}"
        assert row["source"].strip(), where
        assert datetime.date.fromisoformat(row["checked"]) >= BEGUN, where


def test_the_document_fits_its_schema() -> None:
    document = json.loads(json.dumps(catalog.collect(load_catalogue(), None, None)))
    closed_form.validate(document, "catalog")


@pytest.mark.parametrize("kind", list(catalog._KINDS))
def test_each_line_of_a_table_says_when_it_was_checked(kind: str) -> None:
    document = catalog.collect(load_catalogue(), kind, None)
    lines = [
        line for line in catalog_text.format_text(document).splitlines() if line.startswith("  ")
    ]
    dates = {row["checked"] for row in document["rows"]}
    headers = {row["part"] for row in document["rows"]}
    assert sum(any(day in line for day in dates) for line in lines) == len(lines) - len(headers)


def test_rows_that_were_checked_long_ago_are_told() -> None:
    """The maintainer's list; its day is asked from outside, and no plan knows it."""
    known = rows()
    days = sorted({row["checked"] for row in known})
    oldest = datetime.date.fromisoformat(days[0])
    stale = catalog.select_stale(known, oldest)
    assert {row["checked"] for row in stale} == {days[0]}
    before = catalog.select_stale(known, oldest - datetime.timedelta(days=1))
    assert before == []
    unknown = [{**known[0], "checked": None}]
    assert catalog.select_stale(unknown, oldest) == unknown
    empty = {"schema": catalog.SCHEMA, "kind": None, "name": None, "rows": before}
    assert catalog_text.format_text(empty) == "no such rows\n"


def test_one_row_says_when_it_was_checked_and_how_it_stands() -> None:
    text = catalog_text.format_text(catalog.collect(load_catalogue(), "gpus", "h200"))
    assert re.search(r"^  checked: \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert "  status: available" in text


def test_a_row_overrides_the_day_of_its_file(tmp_path: Path) -> None:
    other = ASSUMPTION.replace("electricity", "cooling") + "}"
    (tmp_path / "prices.yaml").write_text(
        "checked: 2026-10-01\nassumptions:\n"
        f"  - {ASSUMPTION}, checked: '2026-10-09'}}\n  - {other}\n"
    )
    found = {row.name: row.checked for row in load_catalogue(tmp_path).prices.assumptions}
    assert (found["electricity"], found["cooling"]) == ("2026-10-09", "2026-10-01")


def test_a_row_that_a_site_changed_does_not_keep_our_day(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(f"assumptions:\n  - {ASSUMPTION}}}\n")
    found = load_catalogue(tmp_path).prices
    assert next(r for r in found.assumptions if r.name == "electricity").checked is None
    assert "2026" not in format_dated_source(
        next(r for r in found.assumptions if r.name == "electricity")
    )
    assert all(row.checked for row in found.api)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (f"assumptions:\n  - {ASSUMPTION}, checked: soon}}\n", 2, "wanted a day (YYYY-MM-DD)"),
        (f"checked: 2026\nassumptions:\n  - {ASSUMPTION}}}\n", 1, "wanted text, found 2026"),
        (f"checked: 26-1-1\nassumptions:\n  - {ASSUMPTION}}}\n", 1, "wanted a day"),
        (f"assumptions:\n  - {ASSUMPTION}, status: gone}}\n", 2, "announced, available, end-of"),
    ],
)
def test_a_day_or_status_that_is_none_is_refused(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        _ = load_catalogue(tmp_path).prices
    assert f"{tmp_path}/prices.yaml:{line}" in caught.value.message
    assert says in caught.value.message


def test_prices_in_a_report_name_their_day() -> None:
    eight = {"gpus": [{"model": "H200 SXM"}] * 8}
    known = find_prices(eight, load_catalogue())
    told = [*(api.source for api in known.apis)]
    told += [known.usual_rent.source, known.usual_gpu_price[2]]
    assert all(re.search(r"; checked \d{4}-\d\d-\d\d", source) for source in told)


def test_what_is_only_announced_is_marked_in_every_form() -> None:
    document = catalog.collect(load_catalogue(), "gpus", None)
    announced = [row["name"] for row in document["rows"] if row["status"] == "announced"]
    assert announced
    text = catalog_text.format_text(document)
    for name in announced:
        assert f"{name}, announced" in text
        assert "  status: announced" in catalog_text.format_text(
            catalog.collect(load_catalogue(), "gpus", name)
        )
    assert "H200 SXM, " not in text


def test_kimi_k3_is_whole() -> None:
    model = load_catalogue().model("kimi-k3")
    assert (model.tool_call_parser, model.reasoning_parser) == ("kimi_k3", "kimi_k3")
    assert model.formats == ("mxfp4", "nvfp4")
    assert (model.context, model.shards) == (1 << 20, 96)
    size = count_checkpoint_bytes(model.architecture, "mxfp4")
    assert size == pytest.approx(1.56e12, rel=0.005)
    assert count_state_bytes(model.architecture, 8) == pytest.approx(54.3e6, rel=0.05)


@pytest.mark.parametrize(
    ("name", "found", "mib"),
    [
        ("NVIDIA B300 SXM6 AC", "B300 SXM", 275040),
        ("GB300", "GB300 (per GPU)", 284208),
        ("GB200", "GB200 (per GPU)", 189471),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell (Server)", 97887),
        ("RTX 6000 Pro", "RTX PRO 6000 Blackwell (Server)", 97887),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell (Workstation)",
            97887,
        ),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX PRO 6000 Blackwell (Max-Q)",
            97887,
        ),
        ("AMD Instinct MI355X", "MI355X", 294912),
        ("Rubin", "Rubin (per GPU)", None),
    ],
)
def test_cards_that_people_buy_now(name: str, found: str, mib: int | None) -> None:
    row = load_catalogue().gpu(name)
    assert (row.name, row.memory_mib) == (found, mib)
    known = [rate for rate in (row.tflops_bf16, row.tflops_fp8, row.tflops_fp4) if rate]
    assert len(known) == 3
    assert known == sorted(known)
