"""Machines that keep the experts in memory: plan, unit and command line against golden files.

Their facts come from spec sheets: nobody here has these machines. KIMI_PROV_GOLDEN=write writes
the golden files anew, for the eye to compare.
"""

from __future__ import annotations

import json
import os
from typing import Any

import closed_form
import pytest
import yaml
from golden import GOLDEN, ROOT, essence, units
from role_templates import filled

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.planner.plan import find_blockers, make_plan
from kimi_prov.planner.settings.parsing import parse_settings

INVENTORY = ROOT / "inventories" / "epyc-h100-hybrid"


def sheet(
    cpu: str, nodes: int, dimms: int, gpu: str, count: int = 1, **more: int
) -> dict[str, Any]:
    """A quoted machine; two sockets and modules of 64 GiB unless `more` says otherwise."""
    document = {
        "schema": "kimi-prov/spec/v1",
        "name": "machine",
        "cpu": {"model": cpu, "sockets": more.get("sockets", 2), "numa_nodes": nodes},
        "memory": {"dimms": dimms, "dimm_gb": more.get("gb", 64), "speed_mt_s": 4800},
        "gpus": {"model": gpu, "count": count},
        "disks": [{"kind": "nvme", "size_gb": 3840, "count": 2, "read_gb_s": 7}],
        "software": {"os": "debian-12", "nvidia_driver": "580.126.09"},
    }
    return spec.make_facts(document, load_catalogue(), "a test's sheet")


CASES = {
    "epyc-h100-hybrid": sheet("EPYC 9654", 2, 24, "H100 NVL 94GB", 2),
    "xeon-8468-h100-2tb": sheet("Xeon Platinum 8468", 2, 32, "H100 PCIe 80GB"),
    "xeon-8468-h100-768gb": sheet("Xeon Platinum 8468", 2, 16, "H100 PCIe 80GB", gb=48),
    "xeon-6980p-snc3-3tb": sheet("Xeon 6980P", 6, 24, "H100 PCIe 80GB", gb=128),
    "xeon-6980p-snc3-768gb": sheet("Xeon 6980P", 6, 24, "H100 PCIe 80GB", gb=32),
    "threadripper-4090": sheet("Threadripper PRO 7995WX", 1, 8, "RTX 4090", sockets=1, gb=128),
}


def planned(name: str) -> dict[str, Any]:
    settings = yaml.safe_load((INVENTORY / "group_vars" / "kimi.yml").read_text())
    if name != "epyc-h100-hybrid":
        settings |= {"kimi_context": "auto"}
    return make_plan(
        CASES[name], parse_settings(settings, host=name, base=INVENTORY), load_catalogue()
    )


def shown(plan: dict[str, Any]) -> dict[str, Any]:
    ram_disk = {key: plan["ram_disk"][key] for key in ("enabled", "size_bytes", "reason")}
    return essence(plan) | {"hybrid": plan["hybrid"], "ram_disk": ram_disk, "warm": plan["warm"]}


@pytest.mark.parametrize("name", CASES)
def test_plan_and_units_are_those_that_were_looked_at(name: str) -> None:
    plan = planned(name)
    closed_form.validate(plan, "plan")
    assert plan["engine"]["name"] == "ktransformers"
    assert plan["engine"]["provisioned"] is True
    written = {GOLDEN / f"{name}.json": json.dumps(shown(plan), indent=1) + "\n"}
    if name == "epyc-h100-hybrid":
        written[GOLDEN / f"{name}.units"] = units(plan)
    else:
        written[GOLDEN / f"{name}.argv"] = "\n".join(plan["instances"][0]["argv"]) + "\n"
    for file, text in written.items():
        if os.environ.get("KIMI_PROV_GOLDEN") == "write":
            file.write_text(text)
        assert file.read_text() == text, f"{file}: look at the difference, then write it anew"


def converting() -> dict[str, Any]:
    """The same machine with a model that is published in fp8, its experts made into AMXINT4."""
    settings = {
        "kimi_model": "kimi-k2-instruct",
        "kimi_kt_method": "AMXINT4",
        "kimi_context": 32768,
    }
    return make_plan(
        CASES["epyc-h100-hybrid"], parse_settings(settings, host="kimi1"), load_catalogue()
    )


def test_a_conversion_and_its_unit_are_those_that_were_looked_at() -> None:
    plan = converting()
    assert not find_blockers(plan)
    written = {
        GOLDEN / "epyc-h100-amxint4.json": json.dumps(
            shown(plan) | {"conversion": plan["conversion"]}, indent=1
        )
        + "\n",
        GOLDEN / "epyc-h100-amxint4.units": filled("convert", "kimi-convert.service.j2", plan)
        + "\n"
        + units(plan),
    }
    for file, content in written.items():
        if os.environ.get("KIMI_PROV_GOLDEN") == "write":
            file.write_text(content)
        assert file.read_text() == content, f"{file}: look at the difference, then write it anew"


def test_of_six_nodes_four_are_used_where_they_hold_the_experts() -> None:
    plan = planned("xeon-6980p-snc3-3tb")
    assert not find_blockers(plan)
    assert plan["hybrid"]["pools"] == 4
    # Two of each socket.
    assert plan["hybrid"]["nodes"] == [0, 1, 3, 4]


def test_nodes_too_small_for_their_share_are_refused_with_the_setting_to_change() -> None:
    plan = planned("xeon-6980p-snc3-768gb")
    (refused,) = [row for row in find_blockers(plan) if row["id"] == "numa.node_memory"]
    assert "SNC off" in refused["fix"]


def test_the_ram_disk_is_left_out_where_the_copy_beside_it_does_not_fit() -> None:
    small, large = (planned(f"xeon-8468-h100-{size}") for size in ("768gb", "2tb"))
    assert small["ram_disk"]["enabled"] is False
    assert small["warm"]["enabled"] is True
    # 768 GiB less 623 of engine and system: so much of the 554 may outlast the start.
    assert "at most 145.2 GiB there and reads 409.1 GiB" in small["warm"]["reason"]
    assert large["ram_disk"]["enabled"] is True


def test_threads_are_physical_cores_and_fewer_than_the_unit_may_use() -> None:
    hybrid = planned("xeon-8468-h100-2tb")["hybrid"]
    assert hybrid["threads"] <= 2 * 48 - 2
