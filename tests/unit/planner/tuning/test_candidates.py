"""What a tune tries on machines of several kinds, and what it leaves out with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plan_inputs import HUGE, LAB_SETTINGS, gpu_facts, hybrid_facts, metal_facts, plan

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.planner.tuning import candidates
from kimi_prov.planner.tuning.subject import Subject, find_obstacle, find_refusal


def subject(facts: dict[str, Any], users: int = 8, **settings: Any) -> Subject:
    variables = LAB_SETTINGS | {f"kimi_{name}": value for name, value in settings.items()}
    parsed, catalogue = parse_settings(variables, host="h1"), load_catalogue()
    served = make_plan(facts, parsed, catalogue)  # type: ignore[arg-type]
    return Subject(facts, parsed, catalogue, served, "throughput", users)  # type: ignore[arg-type]


def listed(machine: Subject, name: str) -> list[candidates.Planned]:
    (setting,) = candidates.select_settings([name])
    return candidates.plan_setting(setting, machine, {}, machine.served)


def labels(machine: Subject, name: str) -> list[str]:
    return [row.candidate.label for row in listed(machine, name) if row.obstacle is None]


def test_requests_are_doubled_up_to_those_of_the_load_and_halved_once() -> None:
    machine = subject(metal_facts(nodes=1, gib=64, cores=16), users=12, concurrency=2)
    assert labels(machine, "requests") == [
        "4 requests at once",
        "8 requests at once",
        "12 requests at once",
        "1 request at once",
    ]


def test_more_threads_come_before_fewer_up_to_the_cores() -> None:
    machine = subject(metal_facts(nodes=1, gib=64, cores=16), threads=6)
    assert labels(machine, "threads") == ["12 threads", "16 threads", "5 threads", "3 threads"]


def test_threads_of_pools_are_tried_where_experts_are_on_processors() -> None:
    rows = listed(subject(hybrid_facts(), **HUGE, engine="ktransformers"), "threads")
    assert rows
    assert all("--kt-cpuinfer" in row.plan["instances"][0]["argv"] for row in rows)


def test_on_gpus_passes_formats_and_layouts_are_tried_with_estimates() -> None:
    machine = subject(gpu_facts(), users=32, **HUGE, context=32768)
    assert labels(machine, "batched-tokens")
    assert [row.candidate.label for row in listed(machine, "cache-format")] == ["cache in fp8"]
    layouts = listed(machine, "layout")
    assert layouts
    for row in layouts:
        assert candidates.estimate(row.plan, "throughput") is not None
        assert row.obstacle is None or "estimated" in row.obstacle
    assert labels(machine, "threads") == []


def test_a_candidate_that_runs_the_same_command_line_is_not_tried() -> None:
    machine = subject(metal_facts(nodes=1, gib=64, cores=16), concurrency=4)
    assert find_obstacle(machine.served, machine.plan({"concurrency": 4})) == (
        "its command line is the one that serves"
    )


def test_a_candidate_may_not_shrink_the_context_that_clients_have() -> None:
    machine = subject(metal_facts(nodes=1, gib=64, cores=16), concurrency=1, context=4096)
    other = replace(machine, served=machine.plan({"context": 8192}))
    why = find_obstacle(other.served, machine.served)
    assert why is not None
    assert "4096" in why


def test_what_is_left_out_has_its_reason_and_only_restricts_it() -> None:
    machine = subject(metal_facts(nodes=1, gib=64, cores=16))
    (row,) = candidates.list_left_out(machine.served, [])
    assert row.name == "moe-kernels"
    assert "no kernels of experts" in row.reason
    assert candidates.list_left_out(machine.served, ["numa"]) == []
    assert [row.name for row in candidates.select_settings(["threads"])] == ["threads"]


def test_on_gpus_loaders_of_the_lock_captures_and_bindings_are_tried() -> None:
    facts = gpu_facts()
    machine = subject(facts, users=32, **HUGE, context=32768)
    assert labels(machine, "load-format") == [
        *("weights by fastsafetensors", "weights by instanttensor"),
        *("weights read by prefetch", "weights read by eager"),
    ]
    assert labels(machine, "capture-sizes") == [
        *("graphs of up to 64 tokens", "graphs of up to 16 tokens", "graphs of up to 8 tokens"),
    ]
    (free,) = listed(machine, "numa")
    assert free.obstacle is None
    assert "--numa-bind" in machine.served["instances"][0]["argv"]
    argv = free.plan["instances"][0]["argv"]
    assert not [word for word in argv if word.startswith("--numa-bind")]
    assert (
        labels(subject(facts, **HUGE, engine_args={"enforce-eager": True}), "capture-sizes") == []
    )


def test_what_needs_an_apply_first_is_refused_with_its_estimate() -> None:
    """Several engines have another proxy; a draft that is not there has no weights."""
    machine = subject(gpu_facts(8, 183359), users=32, **HUGE, context=32768)
    for name, words in (("engines", "need another proxy"), ("draft", "apply installs them")):
        rows = listed(machine, name)
        assert rows, name
        assert all(words in (row.obstacle or "") for row in rows), name
        assert all(candidates.estimate(row.plan, "throughput") for row in rows), name


def test_a_draft_that_serves_is_tried_with_other_lengths_and_without() -> None:
    draft = next(row for row in load_catalogue().drafts if "kimi-k2.5" in row.models and row.least)
    machine = subject(gpu_facts(), users=2, **HUGE, speculative=draft.name, context=32768)
    tokens = machine.served["speculative"]["tokens"]  # type: ignore[index]
    rows = {row.candidate.label: row for row in listed(machine, "draft")}
    assert list(rows)[:2] == [f"{tokens + 1} guesses a step", f"{tokens + 2} guesses a step"]
    assert all(row.obstacle is None or "estimated" in row.obstacle for row in rows.values())
    without = rows[f"without {draft.name}"].plan
    assert "--speculative-config" not in without["instances"][0]["argv"]


def test_several_engines_and_groups_are_refused_with_the_reason() -> None:
    several = plan(metal_facts(nodes=2, gib=64, cores=16), instances=2)
    refused = find_refusal(several)  # type: ignore[arg-type]
    assert refused is not None
    assert "2 engines share its port" in refused[0]
    group: Any = {**several, "group": {"name": "g"}}
    refused = find_refusal(group)
    assert refused is not None
    assert "together with other hosts" in refused[0]
    assert find_refusal(subject(metal_facts(nodes=1, gib=64, cores=16)).served) is None
