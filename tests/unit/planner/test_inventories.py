"""The GPU inventories end to end: facts, plan, units and command lines, held against golden files.

The facts of 8x H200 were recorded on a real machine; those of H100 cards, and of driver 570, are
made from them. KIMI_PROV_GOLDEN=write writes the golden files anew, for the eye to compare.
"""

from __future__ import annotations

import copy
import json
import os

import closed_form
import pytest
from golden import CASES, GOLDEN, essence, h100, planned, units
from plan_inputs import GIB, metal_facts, plan

from kimi_prov.planner.plan import find_blockers


@pytest.mark.parametrize("name", CASES)
def test_plan_and_units_are_those_that_were_looked_at(name: str) -> None:
    plan = planned(name)
    written = {
        GOLDEN / f"{name}.json": json.dumps(essence(plan), indent=1) + "\n",
        GOLDEN / f"{name}.units": units(plan),
    }
    for file, text in written.items():
        if os.environ.get("KIMI_PROV_GOLDEN") == "write":
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert file.read_text() == text, f"{file}: look at the difference, then write it anew"


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_the_driver_is_in_the_way(name: str) -> None:
    plan = planned(name)
    closed_form.validate(plan, "plan")
    found = {row["id"] for row in find_blockers(plan)}
    assert found <= {"driver.branch"}
    assert plan["driver"]["action"] == ("install" if name == "gcp-h100-spot" else "none")
    # Pinned in the inventory of the reference.
    assert plan["engine"]["version"] == ("0.19.1" if name == "dgx-h200" else "0.33.0")
    assert plan["engine"]["provisioned"] is True


def test_made_facts_say_that_they_were_made() -> None:
    assert h100()["origin"]["kind"] == "made"
    assert "recording h200-x8" in h100()["origin"]["detail"]


@pytest.mark.parametrize("name", CASES)
def test_a_stand_in_keeps_the_real_command_line_and_says_what_it_is(name: str) -> None:
    source = "file:///opt/models/kimi-k2-lab"
    plan = planned(name, kimi_engine_stand_in=source)
    closed_form.validate(plan, "plan")
    assert plan["engine"]["variant"] == "cpu"
    assert plan["model"]["name"] == "kimi-k2-lab"
    assert plan["weights"]["source"] == source
    assert plan["instances"][0]["gpus"] == []
    real = planned(name)
    assert plan["stand_in"]["instances"] == real["instances"]
    assert plan["driver"] == real["driver"]
    assert plan["nccl"] == real["nccl"]
    assert set(real["packages"]) <= set(plan["packages"])
    assert plan["model"]["served_names"] == real["model"]["served_names"]
    first = plan["findings"][0]
    assert (first["id"], first["severity"]) == ("engine.stand_in", "warning")
    assert f"vllm {real['engine']['version']} (cuda)" in first["observed"]
    assert real["stand_in"] is None


def test_what_moves_on_a_machine_is_in_its_plan_as_findings_alone() -> None:
    """Else a second `apply` of a stand-in wrote its plan anew, whenever memory had come or gone."""
    quiet = metal_facts(gib=512)
    busy = copy.deepcopy(quiet)
    for row in busy["numa"]["nodes"]:
        row["memory_available_bytes"] = GIB
    for row in busy["filesystems"]:
        row["free_bytes"] = GIB
    busy["packages"]["unfinished"] = ["nginx"]
    busy["clock"] = {"offset_s": -3600}
    source = "file:///opt/models/kimi-k2-lab"
    given = {"model": "kimi-k2.5", "engine_stand_in": source, "weights_source": None}
    before, after = plan(quiet, **given), plan(busy, **given)
    assert before["findings"] != after["findings"]
    assert {**before, "findings": []} == {**after, "findings": []}
    assert "memory.host" in after["stand_in"]["blockers"]
