"""`kimi-prov check` on live machines: several at once, and nothing on them changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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


def test_four_hosts_are_checked_by_one_command_and_stay_as_they_were(four: Lab) -> None:
    before = {name: host.ssh(LISTING) for name, host in four.hosts.items()}
    done = kimi_prov("check", "--inventory", four.inventory, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(row["name"] for row in found["targets"]) == HOSTS
    assert {row["facts"]["origin"]["kind"] for row in found["targets"]} == {"probe"}
    for name, host in four.hosts.items():
        assert host.ssh(LISTING) == before[name], name


def still(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without what its findings observed: free disk moves from one probe to the next."""
    rows = [{k: v for k, v in row.items() if k != "observed"} for row in plan["findings"]]
    return {**plan, "findings": rows}


def test_the_plan_is_the_one_that_plan_prints(four: Lab) -> None:
    checked = json.loads(
        kimi_prov("check", "--inventory", four.inventory, "--format", "json").stdout
    )
    planned = json.loads(kimi_prov("plan", four.inventory, "--format", "json").stdout)
    for row in checked["targets"]:
        assert still(row["plan"]) == still(planned["hosts"][row["name"]])
        assert all(finding["observed"] for finding in row["plan"]["findings"])


def test_wishes_of_the_command_line_win_over_the_inventory(four: Lab) -> None:
    done = kimi_prov(
        "check", "--inventory", four.inventory, "--context", "2048", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["plan"]["model"]["context"] for row in found["targets"]} == {2048}
