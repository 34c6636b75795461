"""inventories/xeon-amx on two Xeon 8468 with 2 and with 1 TB: plan and units against golden files.

The facts come from spec sheets: nobody here has the machine.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import yaml
from golden import GOLDEN, ROOT, essence, units

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.planner.plan import find_blockers, make_plan
from kimi_prov.planner.settings.parsing import parse_settings

INVENTORY = ROOT / "inventories" / "xeon-amx"


def planned(dimms: int) -> dict[str, Any]:
    """Modules of 64 GiB: 32 are 2 TB, 16 are 1 TB."""
    document = {
        "schema": "kimi-prov/spec/v1",
        "name": "xeon-amx",
        "cpu": {"model": "Xeon Platinum 8468", "sockets": 2, "numa_nodes": 2},
        "memory": {"dimms": dimms, "dimm_gb": 64, "speed_mt_s": 4800},
        "disks": [{"kind": "nvme", "size_gb": 3840, "count": 2, "read_gb_s": 7}],
        "software": {"os": "debian-12"},
    }
    facts = spec.make_facts(document, load_catalogue(), "a test's sheet")
    settings = yaml.safe_load((INVENTORY / "group_vars" / "kimi.yml").read_text())
    return make_plan(
        facts, parse_settings(settings, host="xeon-1", base=INVENTORY), load_catalogue()
    )


@pytest.mark.parametrize(("name", "dimms"), [("xeon-amx-2tb", 32), ("xeon-amx-1tb", 16)])
def test_plan_and_units_are_those_that_were_looked_at(name: str, dimms: int) -> None:
    plan = planned(dimms)
    assert find_blockers(plan) == []
    assert plan["ram_disk"]["enabled"] is (dimms == 32)
    shown = essence(plan) | {
        "experts": plan["experts"],
        "single_tok_s": plan["throughput"]["single_tok_s"],
    }
    written = {
        GOLDEN / f"{name}.json": json.dumps(shown, indent=1) + "\n",
        GOLDEN / f"{name}.units": units(plan),
    }
    for file, text in written.items():
        if os.environ.get("KIMI_PROV_GOLDEN") == "write":
            file.write_text(text)
        assert file.read_text() == text, f"{file}: look at the difference, then write it anew"
