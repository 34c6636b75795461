"""The GPU inventories' plans, and what of a plan is held against golden files."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.ansible import serve_units
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording, synthetic
from kimi_prov.planner.hosts import groups
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from kimi_prov.planner.settings.parsing import Settings

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
SERVE = ROOT / "roles" / "serve"
# As the inventory's own comment says it.
NVFP4 = {"kimi_weights_format": "nvfp4", "kimi_kv_dtype": "fp8", "kimi_context": 32768}


def h200() -> dict[str, Any]:
    return recording.read_recording(ROOT / "tests" / "data" / "recordings" / "h200-x8")


def h100(driver: str = "580.126.09", cuda: str = "13.0") -> dict[str, Any]:
    return synthetic.make_variant(h200(), "h100-x8", card=synthetic.H100, driver=driver, cuda=cuda)


def paired(rank: int) -> dict[str, Any]:
    """One of two such hosts, with an InfiniBand card of 400 Gbit/s for each GPU."""
    facts = copy.deepcopy(h100())
    address = f"10.1.0.{rank + 1}"
    link = {"link_layer": "InfiniBand", "state": "ACTIVE", "speed_bits_per_s": 400 * 10**9}
    facts["network"] |= {
        "addresses": [address],
        "interfaces": [{"name": "ens1", "state": "up", "addresses": [f"{address}/24"]}],
        "rdma": [{"device": f"mlx5_{card}", "port": 1, **link} for card in range(8)],
    }
    return facts


# Name of the golden files: inventory, facts, and settings beside the inventory's.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "h100x8": ("h100x8", h100(), {}),
    "dgx-h200": ("dgx-h200", h200(), {}),
    "gcp-h100-spot": ("gcp-h100-spot", h100("570.133.20", "12.8"), {}),
    "gcp-h100-spot-nvfp4": ("gcp-h100-spot", h100(), NVFP4),
    "h100x8-pair": ("h100x8-pair", paired(0), {}),
    "h100x8-pair-rank": ("h100x8-pair", paired(1), {}),
}


def planned(name: str, **more: Any) -> dict[str, Any]:
    """The plan of a case; `more`: settings over its own."""
    inventory, facts, own = CASES[name]
    folder = ROOT / "inventories" / inventory
    wanted = yaml.safe_load((folder / "group_vars" / "kimi.yml").read_text())
    settings = parse_settings(wanted | own | more, host=inventory, base=folder)
    return make_plan(facts, settings, load_catalogue(), pair(facts, settings))


def pair(facts: dict[str, Any], settings: Settings) -> groups.GroupHosts | None:
    """The hosts of the inventory of two; None for one that serves alone."""
    if settings.hosts_per_model == 1:
        return None
    hosts = tuple(
        groups.HostInput(
            f"h100x8-{rank + 1}", paired(rank), groups.select_shared_settings(settings)
        )
        for rank in range(2)
    )
    own = next(row.host for row in hosts if row.facts == facts)
    return groups.GroupHosts("kimi", own, hosts)


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
        # Its reason has speeds, which move with each measured row.
        "parallel": {k: value for k, value in plan["parallel"].items() if k != "reason"},
        "speculative": plan["speculative"],
        "gpu_nodes": plan["instances"][0]["gpu_nodes"],
        "memory": memory,
        "host_parts": {part["name"]: part["bytes"] for part in plan["memory"]["host_parts"]},
        "driver": {key: plan["driver"][key] for key in ("required_branch", "action")},
        "ram_disk": plan["ram_disk"]["enabled"],
        "start_s": plan["timeouts"]["start_s"],
        "weights": {key: plan["weights"][key] for key in ("source", "bytes")},
        "draft": plan["weights"]["draft"],
        **({"group": {**plan["group"], "digest": "DIGEST"}} if plan["group"] else {}),
        "findings": [
            f"{row['severity']} {row['id']}: {row['observed']}"
            for row in plan["findings"]
            if row["severity"] in ("blocker", "warning")
        ],
    }


def units(plan: dict[str, Any]) -> str:
    """The unit and the drop-in of the first instance, as the role writes them."""
    role = yaml.safe_load((SERVE / "defaults" / "main.yml").read_text())
    role["serve_start_timeout_s"] = plan["timeouts"]["unit_start_s"]
    options = {name.removeprefix("serve_"): value for name, value in role.items()}
    written = serve_units.render(plan, serve_units.Options(**options))
    text = f"{written.template}\n{next(iter(written.drop_ins.values()))}"
    return re.sub(r"(?<=KIMI_STAMP=)[0-9a-f]{16}$", "STAMP", text, flags=re.MULTILINE)
