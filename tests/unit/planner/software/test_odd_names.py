"""Names and versions from elsewhere that no part has: unknown, and in no time."""

from __future__ import annotations

import time

import pytest

from kimi_prov.catalog import names
from kimi_prov.planner.software import driver


@pytest.mark.parametrize("version", ["\u00b2", "9" * 5000, "", None, "r580"])
def test_a_version_that_is_none_has_no_branch(version: object) -> None:
    assert driver.parse_branch(version) == 0


def test_a_branch_is_the_first_number() -> None:
    assert driver.parse_branch("580.159.04") == 580


def test_a_long_name_takes_no_longer_than_a_short_one() -> None:
    began = time.process_time()
    assert names.normalize_name("H200 " + "@" * 200_000 + "\nx") == "h200"
    assert time.process_time() - began < 5, "a hang guard; it takes no time at all"
