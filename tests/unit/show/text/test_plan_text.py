"""A plan as text fits a terminal and hides nothing that matters."""

from __future__ import annotations

import json
import re
from pathlib import Path

from plan_inputs import lab_facts, plan

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.show.text import plan as plan_text

SHEETS = Path(__file__).resolve().parents[4] / "inventories" / "specs"
FACTS = Path(__file__).resolve().parents[3] / "data" / "facts" / "lab-nspawn.json"


def shown(**settings: object) -> str:
    given = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/model"}
    given |= {f"kimi_{name}": value for name, value in settings.items()}
    facts = json.loads(FACTS.read_text())
    return plan_text.format_plan(
        make_plan(facts, parse_settings(given, host="lab1"), load_catalogue())
    )


def test_it_fits_80_columns_and_names_every_decision() -> None:
    page = shown()
    assert max(len(line) for line in page.splitlines()) <= 80
    for word in ("kimi-k2-lab", "vllm 0.32.0", "RAM disk", "numactl", "firewall", "random weights"):
        assert word in page


def test_speeds_and_how_the_model_is_shared_out_are_shown() -> None:
    facts = spec.read_sheet(SHEETS / "quote-8x-h200.yml", load_catalogue())
    page = plan_text.format_plan(
        make_plan(facts, parse_settings({"kimi_model": "kimi-k2.5"}, host="q"), load_catalogue())
    )
    words = " ".join(page.split())
    assert "parallel tensor 8" in words
    assert re.search(r"speed estimated, \S+-bound: [\d.]+ \([\d.]+ to [\d.]+\) tokens/s for", words)
    assert "speed not estimated: a model of random weights" in " ".join(shown().split())


def test_blockers_come_with_how_to_mend_them() -> None:
    page = shown(context=999999)
    assert "BLOCKER" in page
    assert "fix: set kimi_context to 4096" in page


def test_a_group_s_hosts_are_named_and_a_rank_has_no_port() -> None:
    head = plan(lab_facts(), hosts_per_model=2)
    rank = {
        **head,
        "group": {**head["group"], "rank": 1, "name": "pair"},
        "proxy": {**head["proxy"], "backends": []},
        "instances": [{**head["instances"][0], "port": None}],
    }
    page = plan_text.format_plan(rank)
    assert "pair: host-1 (" in page
    assert "this host is rank 1" in page
    assert "none: the group is reached at its head" in page
    assert "no port" in page
    assert "8000" not in page.partition("instance 0")[0]
    assert "this host is the head" in plan_text.format_plan(head)
    assert "group  " not in shown()
