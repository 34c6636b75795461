"""What the plan says of engines that sleep with their weights in host memory."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import HUGE, found, gpu_facts, hybrid_facts, lab_facts, metal_facts, plan

from kimi_prov.ansible import serve_units

SLEEPS = {"idle_stop": "30m", "idle_action": "sleep"}


def sleeping(facts: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return plan(facts or gpu_facts(), **{**HUGE, **SLEEPS, **settings})


def test_the_engine_may_sleep_and_takes_the_order_in_a_folder_of_its_own() -> None:
    document = sleeping()
    (instance,) = document["instances"]
    assert "--enable-sleep-mode" in instance["argv"]
    assert not [row for row in document["findings"] if row["id"].startswith("rest.sleep")]
    units = serve_units.render(document, serve_units.Options(60, 60, 5, 5))
    (drop_in,) = units.drop_ins.values()
    lines = drop_in.splitlines()
    assert "RuntimeDirectory=kimi-serve-0" in lines
    assert "RuntimeDirectoryMode=0700" in lines
    assert any("KIMI_CONTROL_SOCKET=/run/kimi-serve-0/" in line for line in lines)


def test_who_stops_when_idle_gets_none_of_it() -> None:
    document = sleeping(idle_action="stop")
    units = serve_units.render(document, serve_units.Options(60, 60, 5, 5))
    text = " ".join([*document["instances"][0]["argv"], *units.drop_ins.values()])
    for word in ("sleep-mode", "RuntimeDirectory", "KIMI_CONTROL", "PYTORCH_ALLOC_CONF"):
        assert word not in text


def test_the_copy_of_the_weights_counts_in_host_memory() -> None:
    stops, sleeps = sleeping(idle_action="stop"), sleeping()
    more = sleeps["memory"]["host_ram_required_bytes"] - stops["memory"]["host_ram_required_bytes"]
    of_all = 8 * sleeps["memory"]["weights_bytes_per_gpu"]
    assert more == of_all
    assert sleeps["memory"]["unit_limit_bytes"] >= of_all


def test_each_of_several_engines_has_its_own_socket() -> None:
    document = sleeping(gpu_facts(mib=188_000), instances=2)
    sockets = {row["env"]["KIMI_CONTROL_SOCKET"] for row in document["instances"]}
    assert len(sockets) == 2


@pytest.mark.parametrize(
    ("facts", "settings", "observed"),
    [
        (gpu_facts(), {"engine_version": "0.19.1"}, "vLLM 0.19.1"),
        (gpu_facts(), {"engine_args": {"load-format": "ipc_cache"}}, "ipc_cache"),
        (hybrid_facts(), {"engine": "ktransformers"}, "ktransformers"),
    ],
)
def test_an_engine_that_cannot_sleep_is_refused(
    facts: dict[str, Any], settings: dict[str, Any], observed: str
) -> None:
    (row,) = found(sleeping(facts, **settings), "rest.sleep_engine")
    assert row["severity"] == "blocker"
    assert observed in row["observed"]


def test_processors_are_refused() -> None:
    (row,) = found(plan(lab_facts(), **SLEEPS), "rest.sleep_engine")
    assert "other engines have no sleep" in row["required"]


def test_memory_that_does_not_hold_the_copy_is_refused() -> None:
    facts = gpu_facts()
    facts["memory"] |= metal_facts(gib=512)["memory"]
    (row,) = found(sleeping(facts), "rest.sleep_memory")
    assert row["severity"] == "blocker"
    assert "574.6 GiB of weights beside" in row["observed"]
    facts["memory"] |= metal_facts(gib=768)["memory"]
    assert not found(sleeping(facts, ram_disk="never"), "rest.sleep_memory")


def test_a_ram_disk_beside_the_copy_is_told() -> None:
    (row,) = found(sleeping(), "rest.memory")
    assert "stay taken while the engine sleeps" in row["observed"]
    assert not found(sleeping(ram_disk="never"), "rest.memory")


def test_the_plan_says_what_a_sleep_would_gain() -> None:
    (row,) = found(plan(gpu_facts(), idle_stop="30m", **HUGE), "rest.engine_sleep")
    assert row["severity"] == "info"
    # 8 times 77.1 GB over the PCIe of eight GPUs, 50 GB/s each.
    assert "needs 574.6 GiB of host memory beside" in row["observed"]
    assert "which it has of" in row["observed"]
    assert "a wake would copy the weights in 1.5 s or more" in row["observed"]
    assert "a start takes about" in row["observed"]
    assert "kimi_idle_action: sleep" in row["fix"]


def test_where_memory_does_not_hold_the_weights_twice_nothing_would_be_gained() -> None:
    facts = gpu_facts()
    facts["memory"] |= metal_facts(gib=512)["memory"]
    document = plan(facts, idle_stop="30m", ram_disk="never", **HUGE)
    (row,) = found(document, "rest.engine_sleep")
    assert "which it has not of" in row["observed"]
    assert "would copy" not in row["observed"]


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        (gpu_facts(), {**HUGE, "idle_action": "poweroff"}),
        (gpu_facts(), {**HUGE, "wake": "off"}),
        (hybrid_facts(), {**HUGE, "engine": "ktransformers"}),
        (lab_facts(), {}),
    ],
)
def test_it_says_nothing_of_a_sleep_that_could_not_be(
    facts: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert not found(plan(facts, idle_stop="30m", **settings), "rest.engine_sleep")
