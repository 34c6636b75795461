"""Sections and values that a plan may lack: what reads them goes on without, or says what lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from golden import planned

from kimi_prov.contract import groups
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench import sampler
from kimi_prov.on_host.diagnose import read_engine_metrics
from kimi_prov.on_host.engine import network_proof
from kimi_prov.on_host.lifecycle import idle
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.usage import counting
from kimi_prov.on_host.watchdog import observe

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.group import GroupPlan


def make_plan(case: str = "h100x8") -> MachinePlan:
    return cast("MachinePlan", planned(case))


def test_an_engine_without_a_port_is_never_asked() -> None:
    """Port 80 would be asked in its place, with the key of the machine; a test asks nobody."""
    plan = make_plan("h100x8-pair-rank")
    assert [row["port"] for row in plan["instances"]] == [None]
    assert read_engine_metrics(plan) == []
    assert sampler.read_engine_state(plan) is None
    assert observe.list_engines(plan) == []
    assert counting.find_uncounted(plan) == []


def test_a_host_alone_names_no_group() -> None:
    plan = make_plan()
    assert groups.list_hosts(plan) == []
    with pytest.raises(HostError, match="the host serves its model alone"):
        groups.get_head(plan)


def test_a_group_of_unknown_interface_promises_no_speed(tmp_path: Path) -> None:
    group = cast("GroupPlan", {"interface": None, "rdma": None})
    assert network_proof.describe_link(group, Machine(str(tmp_path))) == {
        "interface": None,
        "speed_bits_per_s": None,
        "mtu": None,
        "rdma_bits_per_s": None,
    }


def test_a_machine_that_always_serves_has_no_idle_time() -> None:
    with pytest.raises(HostError, match="is to serve at all times"):
        idle.get_planned(make_plan())


def test_no_plan_is_read_as_empty(tmp_path: Path) -> None:
    assert plans.read_plan(tmp_path / "plan.json") == {}
    (tmp_path / "plan.json").write_text("[]")
    assert plans.read_machine_plan(tmp_path / "plan.json") == {}
