"""The rows of troubles: each recognises its own log, and no row the log of another."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract.troubles import find_literals
from kimi_prov.on_host.troubles.causes import Diagnosis, find_causes
from kimi_prov.on_host.troubles.scan import Patterns, Scanner
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from kimi_prov.catalog.troubles import TroubleRow

ROWS = {row.id: row for row in load_catalogue().troubles}
# Long enough that few lines of other troubles are looked at.
SHORTEST = 5


@cache
def patterns() -> Patterns:
    return Patterns(ROWS.values())


@cache
def diagnose(log: str) -> tuple[Diagnosis, list[str]]:
    """Return what is told of a log, and every row that was recognised in it."""
    scanner = Scanner(patterns())
    scanner.begin("log")
    for line in log.splitlines():
        scanner.read(line.encode())
    return find_causes(scanner), [hit.row.id for hit in scanner.list_hits()]


def expressions(row: TroubleRow) -> list[str]:
    near = [one for one in (row.after, row.not_after) if one]
    return [*row.match, *row.also, *row.unless, *near]


def is_told_alone(row: TroubleRow) -> bool:
    """Whether the row's log is told as this trouble and no other."""
    found, hit = diagnose(row.log)
    causes = [cause.hit.row.id for cause in found.causes]
    if row.kind in ("fault", "symptom", "general"):
        return causes == [row.id]
    if row.kind == "harmless":
        return (causes, [one.row.id for one in found.harmless]) == ([], [row.id])
    # A consequence is no cause, and told itself only where nothing else is known.
    followed = [one.row.id for cause in found.causes for one in cause.followed_by]
    return row.id in hit and (row.id in followed or causes in ([], [row.id]))


# One case for the rows of a product: a case a row costs more than what it looks at.
of_a_product = pytest.mark.parametrize(
    "rows",
    [
        [row for row in ROWS.values() if row.products[0] == product]
        for product in sorted({row.products[0] for row in ROWS.values()})
    ],
    ids=lambda rows: rows[0].products[0],
)


@of_a_product
def test_a_row_recognises_its_own_log_and_no_other_row_does(rows: list[TroubleRow]) -> None:
    assert [row.id for row in rows if not is_told_alone(row)] == []


@of_a_product
def test_every_expression_has_words_by_which_its_lines_are_found(rows: list[TroubleRow]) -> None:
    texts = [text for row in rows for text in expressions(row)]
    assert [text for text in texts if min(map(len, find_literals(text))) < SHORTEST] == []


@of_a_product
def test_what_stands_for_a_value_is_a_value_of_a_line(rows: list[TroubleRow]) -> None:
    """No person reads the name of a group in place of its value."""
    for row in rows:
        groups = {group for text in expressions(row) for group in re.compile(text).groupindex}
        for cause in diagnose(row.log)[0].causes:
            text = f"{cause.title} {cause.cause} {cause.fix}"
            assert [group for group in groups if f"<{group}>" in text] == [], row.id


@of_a_product
def test_a_row_that_is_told_says_what_to_do(rows: list[TroubleRow]) -> None:
    told = [row for row in rows if row.kind in ("fault", "symptom", "general")]
    assert [row.id for row in told if not row.fix] == []
    assert [row.id for row in rows if len(row.title) > 90] == []
    assert [row.id for row in rows if not re.fullmatch(r"diagnose\.[a-z0-9_]+", row.id)] == []


def test_no_row_has_the_id_of_a_rule() -> None:
    """Rules look at more than lines: counters, units, disks, the plan."""
    assert set(ROWS) & set(DEFINITIONS) == set()


# Each has troubles of its own that people report.
PRODUCTS = [
    *("nccl", "cuda", "torch", "triton", "flashinfer", "deepgemm", "marlin", "compressed-tensors"),
    *("kt-kernel", "sglang", "vllm", "ray", "transformers", "huggingface_hub"),
    *("haproxy", "systemd", "cgroups", "kubernetes", "slurm"),
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_every_product_has_some_rows(product: str) -> None:
    assert len([name for name, row in ROWS.items() if product in row.products]) >= 5


def test_there_are_rows_for_more_than_the_drivers_codes() -> None:
    named = [name for name in ROWS if not re.match(r"diagnose\.s?xid_\d", name)]
    assert len(named) >= 150
