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


def diagnose(log: str) -> tuple[Diagnosis, list[str]]:
    """Return what is told of a log, and every row that was recognised in it."""
    scanner = Scanner(patterns())
    scanner.begin("log")
    for line in log.splitlines():
        scanner.read(line.encode())
    return find_causes(scanner), [hit.row.id for hit in scanner.list_hits()]


def expressions(row: TroubleRow) -> list[str]:
    return [*row.match, *row.also, *row.unless, *([row.after] if row.after else [])]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_recognises_its_own_log_and_no_other_row_does(name: str) -> None:
    row = ROWS[name]
    found, hit = diagnose(row.log)
    causes = [cause.hit.row.id for cause in found.causes]
    followed = [hit.row.id for cause in found.causes for hit in cause.followed_by]
    harmless = [hit.row.id for hit in found.harmless]
    if row.kind in ("fault", "symptom"):
        assert causes == [name]
    elif row.kind == "harmless":
        assert (causes, harmless) == ([], [name])
    else:
        # A consequence is no cause, and told itself only where nothing else is known.
        assert name in hit
        assert name in followed or causes in ([], [name])


@pytest.mark.parametrize("name", ROWS)
def test_every_expression_has_words_by_which_its_lines_are_found(name: str) -> None:
    short = {
        text for text in expressions(ROWS[name]) if min(map(len, find_literals(text))) < SHORTEST
    }
    assert short == set()


@pytest.mark.parametrize("name", ROWS)
def test_what_stands_for_a_value_is_a_value_of_a_line(name: str) -> None:
    """No person reads the name of a group in place of its value."""
    row = ROWS[name]
    told = diagnose(row.log)[0].causes
    groups = {group for text in expressions(row) for group in re.compile(text).groupindex}
    for cause in told:
        text = f"{cause.title} {cause.cause} {cause.fix}"
        assert [group for group in groups if f"<{group}>" in text] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_is_told_says_what_to_do(name: str) -> None:
    row = ROWS[name]
    told = row.kind in ("fault", "symptom")
    assert bool(row.fix) or not told
    assert len(row.title) <= 90
    assert re.fullmatch(r"diagnose\.[a-z0-9_]+", name)


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
