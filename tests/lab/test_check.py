"""`kimi-prov check` on live machines: several at once, quickly, and nothing on them changes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from machines import LISTING, kimi_prov, make_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Lab

pytestmark = pytest.mark.lab
HOSTS = ["node1", "node2", "node3", "node4"]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Four hosts that nothing was done to."""
    made = make_lab(tmp_path_factory.mktemp("check") / "inv", "10.93.31", nodes=HOSTS)
    made.up()
    yield made
    made.down()


def test_four_hosts_are_checked_within_ten_seconds_and_stay_as_they_were(four: Lab) -> None:
    before = {name: host.ssh(LISTING) for name, host in four.hosts.items()}
    begun = time.monotonic()
    done = kimi_prov("check", four.inventory, "--format", "json")
    seconds = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(row["name"] for row in found["targets"]) == HOSTS
    assert {row["facts"]["origin"]["kind"] for row in found["targets"]} == {"probe"}
    for name, host in four.hosts.items():
        assert host.ssh(LISTING) == before[name], name
    assert seconds < 10


def test_the_plan_is_the_one_that_plan_prints(four: Lab) -> None:
    checked = json.loads(kimi_prov("check", four.inventory, "--format", "json").stdout)
    planned = json.loads(kimi_prov("plan", four.inventory, "--format", "json").stdout)
    for row in checked["targets"]:
        assert row["plan"] == planned["hosts"][row["name"]]


def test_wishes_of_the_command_line_win_over_the_inventory(four: Lab) -> None:
    done = kimi_prov("check", four.inventory, "--context", "2048", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["plan"]["model"]["context"] for row in found["targets"]} == {2048}
