"""The GPU inventories end to end: facts, plan, units and command lines, held against golden files.

The facts of 8x H200 were recorded on a real machine; those of H100 cards, and of driver 570, are
made from them. KIMI_PROV_GOLDEN=write writes the golden files anew, for the eye to compare.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kimi_prov import schemas
from kimi_prov.ansible import serve_units
from kimi_prov.catalog.loader import load
from kimi_prov.facts import recording, synthetic
from kimi_prov.planner.plan import blockers, make_plan
from kimi_prov.planner.settings.parsing import parse

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "data" / "golden"
SERVE = ROOT / "roles" / "serve"
# As the inventory's own comment says it.
NVFP4 = {"kimi_weights_format": "nvfp4", "kimi_kv_dtype": "fp8", "kimi_context": 32768}


def h200() -> dict[str, Any]:
    return recording.read(ROOT / "tests" / "data" / "recordings" / "h200-x8")


def h100(driver: str = "580.126.09", cuda: str = "13.0") -> dict[str, Any]:
    return synthetic.made(h200(), "h100-x8", card=synthetic.H100, driver=driver, cuda=cuda)


# Name of the golden files: inventory, facts, and settings beside the inventory's.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "h100x8": ("h100x8", h100(), {}),
    "dgx-h200": ("dgx-h200", h200(), {}),
    "gcp-h100-spot": ("gcp-h100-spot", h100("570.133.20", "12.8"), {}),
    "gcp-h100-spot-nvfp4": ("gcp-h100-spot", h100(), NVFP4),
}


def planned(name: str) -> dict[str, Any]:
    inventory, facts, more = CASES[name]
    folder = ROOT / "inventories" / inventory
    settings = yaml.safe_load((folder / "group_vars" / "kimi.yml").read_text())
    return make_plan(facts, parse(settings | more, host=inventory, base=folder), load())


def essence(plan: dict[str, Any]) -> dict[str, Any]:
    """What a reader has to look at; the command lines stand in the unit."""
    memory = {
        key: plan["memory"][key]
        for key in ("weights_bytes_per_gpu", "kv_available_bytes_per_gpu", "kv_tokens_max")
    }
    engine = {key: plan["engine"][key] for key in ("env_name", "torch", "cuda", "provisioned")}
    return {
        "engine": engine,
        "model": {k: plan["model"][k] for k in ("name", "weights_format", "kv_dtype", "context")},
        "parallel": plan["parallel"],
        "speculative": plan["speculative"],
        "gpu_nodes": plan["instances"][0]["gpu_nodes"],
        "memory": memory,
        "host_parts": {part["name"]: part["bytes"] for part in plan["memory"]["host_parts"]},
        "driver": {key: plan["driver"][key] for key in ("required_branch", "action")},
        "ram_disk": plan["ram_disk"]["enabled"],
        "start_s": plan["timeouts"]["start_s"],
        "weights": {key: plan["weights"][key] for key in ("source", "bytes")},
        "draft": plan["weights"]["draft"],
        "findings": [
            f"{row['severity']} {row['id']}: {row['observed']}"
            for row in plan["findings"]
            if row["severity"] in ("blocker", "warning")
        ],
    }


def units(plan: dict[str, Any]) -> str:
    """The unit and the drop-in of the first instance, as the role writes them."""
    role = yaml.safe_load((SERVE / "defaults" / "main.yml").read_text())
    role["serve_start_timeout_s"] = max(3600, plan["timeouts"]["start_s"])
    options = {name.removeprefix("serve_"): value for name, value in role.items()}
    written = serve_units.render(plan, serve_units.Options(**options))
    text = f"{written.template}\n{written.drop_ins[0]}"
    return re.sub(r"(?<=KIMI_STAMP=)[0-9a-f]{16}$", "STAMP", text, flags=re.MULTILINE)


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
    jsonschema.Draft202012Validator(schemas.load("plan")).validate(plan)
    found = {row["id"] for row in blockers(plan)}
    assert found <= {"driver.branch"}
    assert plan["driver"]["action"] == ("install" if name == "gcp-h100-spot" else "none")
    assert plan["engine"]["version"] == "0.19.1"
    assert plan["engine"]["provisioned"] is True


def test_made_facts_say_that_they_were_made() -> None:
    assert h100()["origin"]["kind"] == "made"
    assert "recording h200-x8" in h100()["origin"]["detail"]


@pytest.mark.parametrize("name", CASES)
def test_a_stand_in_keeps_the_real_command_line_and_says_what_it_is(name: str) -> None:
    inventory, facts, more = CASES[name]
    settings = yaml.safe_load(
        (ROOT / "inventories" / inventory / "group_vars" / "kimi.yml").read_text()
    )
    source = "file:///opt/models/kimi-k2-lab"
    given = settings | more | {"kimi_engine_stand_in": source}
    plan = make_plan(facts, parse(given, host=inventory), load())
    jsonschema.Draft202012Validator(schemas.load("plan")).validate(plan)
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
    assert "vllm 0.19.1 (cuda)" in first["observed"]
    assert real["stand_in"] is None
