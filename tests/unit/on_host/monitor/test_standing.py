"""What is read of a real Prometheus for `status`, and what a host that does not watch says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.monitor import status
from kimi_prov.on_host.status import machine
from kimi_prov.on_host.system import files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"data": {"alerts": [1]}}', '{"data": null}'])
def test_what_is_no_answer_is_none(text: str) -> None:
    assert status.parse_alerts(text) is None
    assert status.parse_targets(text) is None


def test_the_disk_that_series_take_is_counted_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "chunk").mkdir()
    (tmp_path / "chunk" / "a").write_bytes(b"x" * 5000)
    assert 5000 <= files.count_disk_bytes(tmp_path) <= 5000 + (64 << 10)
    assert files.count_disk_bytes(tmp_path / "none") == 0


def test_a_host_that_neither_serves_nor_watches_says_so(tmp_path: Path) -> None:
    found = machine.collect(Paths(tmp_path))
    assert (found["ok"], found["provisioned"]) == (False, False)
