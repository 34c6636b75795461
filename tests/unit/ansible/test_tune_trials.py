"""The drop-in by which the units of what serves run a candidate."""

from __future__ import annotations

from typing import Any

from plan_inputs import metal_facts, plan

from kimi_prov.ansible.serve_units import Options, render
from kimi_prov.ansible.tune_trials import build_overlays
from kimi_prov.contract.unit_comparison import parse_form
from kimi_prov.on_host.system.started import join_unit

UNIT = "kimi-serve@0.service"


def test_with_the_drop_in_the_unit_runs_what_an_apply_of_the_candidate_would() -> None:
    facts = metal_facts(nodes=1, gib=64, cores=16)
    served: Any = plan(facts, concurrency=1, threads=1)
    other: Any = plan(facts, concurrency=8, threads=4)
    served["instances"][0]["env"]["ONLY_BEFORE"] = "1"
    (text,) = build_overlays(served, other).values()
    units = render(served, Options(0, 0, 0, 0))
    both = join_unit(units.template, units.drop_ins[UNIT])
    merged = parse_form(join_unit(both, text))
    applied = render(other, Options(0, 0, 0, 0)).form(UNIT)
    for part in ("command line", "binding", "engine"):
        assert merged[part] == applied[part], part
    for name, value in applied["environment"].items():
        assert merged["environment"][name] == value
    assert "UnsetEnvironment=ONLY_BEFORE" in text
    assert text.index("ExecStart=\n") < text.rindex("ExecStart=")
