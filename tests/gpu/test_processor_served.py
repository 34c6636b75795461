"""Kimi's native INT4 on this machine's processors, the GPUs away: kt-kernel under its unit.

In order, as the tests with the GPUs: each goes on from what the one before has left.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import pytest
import steps_bench
from gpu_report import processor
from machines import kimi_prov

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def plan(processor_host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    return unit.planned(processor_host)


def test_apply_serves_on_the_processors(
    processor_host: Host, plan: dict[str, Any], report: Report
) -> None:
    """`kimi-prov apply` brings a host without GPUs to a model by the own kernel of the experts."""
    assert plan["experts"]["by"] == "native"
    began = time.monotonic()
    done = processor_host.apply()
    said = unit.said(processor_host)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{said}"
    engine = plan["engine"]
    report.figure(
        apply_s=round(time.monotonic() - began),
        first_start_s=unit.start_seconds(processor_host),
        engine=f"{engine['name']} {engine['version']} for CPUs, kimi-kt-experts",
        torch=engine.get("torch"),
        python=engine.get("python_version"),
        command=plan["instances"][0]["argv"][1:],
        numactl=plan["instances"][0]["numactl"],
    )
    exposure = processor_host.ssh(f"systemd-analyze security {unit.UNIT} --no-pager")
    report.figure(exposure=re.findall(r"[\d.]+", exposure.strip().splitlines()[-1])[-1:])


def test_the_kernel_is_the_one_for_this_processor(served: Host, report: Report) -> None:
    """The own kernel runs its AMX build where the processor has AMX, and holds each layer."""
    log = unit.said(served, 3000)
    builds = re.findall(r"own kernel for (\S+): (\d+) threads", log)
    layers = re.findall(r"experts of layer \d+ \(\d+ of \d+\) in the own kernel for (\S+):", log)
    report.figure(own_kernel=builds[-1:], experts_in=sorted(set(layers)))
    assert builds, log[-2000:]
    assert layers, log[-2000:]
    assert ("amx" in builds[-1][0].lower()) == bool(processor()["amx"])


def test_verify_passes_on_the_processors(served: Host, report: Report) -> None:
    """`kimi-prov verify` passes, the processes and their memory where the plan put them."""
    checks = unit.verified(served)
    report.figure(placement=[row.get("detail") for row in checks if row["name"] == "placement"])


def test_a_second_apply_on_the_processors_changes_nothing(served: Host, report: Report) -> None:
    """`apply` again changes nothing and leaves the engine running."""
    report.figure(second_apply_s=unit.applied_again(served))


def test_bench_measures_on_the_processors(serving: Host, report: Report) -> None:
    """`kimi-prov bench` measures the served model, and a layer of experts in the own kernel."""
    bench = unit.benched(serving)
    report.figure(bench=bench)
    assert all(row["layer"]["available"] for row in bench["hosts"].values())


def test_a_killed_server_on_the_processors_is_served_again(
    serving: Host, clock: Clock, report: Report
) -> None:
    """After kill -9 of the server it answers again."""
    first = unit.shown(serving)
    serving.ssh(f"kill -9 {first['MainPID']}")
    seconds = unit.wait_for_restart(serving, first["MainPID"], clock.a_start_s)
    report.figure(after_kill_of_server_s=seconds)
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_dense_weights_in_int8_are_served_by_apply(
    served: Host, clock: Clock, report: Report
) -> None:
    """`kimi_dense_weights: int8` brings all other weights into the own kernel, by `apply`."""
    unit.wish(served, kimi_dense_weights="int8", kimi_start_timeout_s=int(max(60.0, clock.left_s)))
    began = time.monotonic()
    done = served.apply()
    log = unit.said(served, 3000)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{log[-2000:]}"
    said = re.findall(r"dense weights in int8 by the own kernel for (\S+)", log)
    report.figure(dense_apply_s=round(time.monotonic() - began), dense_by=said[-1:])
    assert said, log[-2000:]
    assert ("amx" in said[-1].lower()) == bool(processor()["amx"])
    unit.verified(served)
    report.figure(dense_bench=unit.benched(served))


def test_decode_steps_are_one_call_of_the_own_kernel(served: Host) -> None:
    """With dense weights in int8 all layers of a decode step are one call of the own kernel."""
    log = unit.said(served, 3000)
    said = re.findall(r"decode steps: (.*)", log)
    assert said, log[-2000:]
    assert said[-1].endswith("in one call of the own kernel, for up to 64 requests"), said[-1]


def test_whole_steps_beside_memory_and_other_engines(
    served: Host, clock: Clock, report: Report
) -> None:
    """Whole steps and prompts beside what the memory streams, vLLM's own layers and llama.cpp."""
    served.ssh(f"systemctl stop {unit.UNIT}", timeout=300)
    ways = "own,layers,bf16,llama"
    steps = steps_bench.measure(served, ways, max(60.0, min(480.0, clock.left_s - 60)))
    report.figure(whole_steps=steps)
    unit.restart(served, clock.a_start_s)
    medians = [row for row in steps["rows"] if row["what"] == "medians"]
    assert medians, steps
    assert medians[0]["medians"]["own"][0] < medians[0]["medians"]["layers"][0]


def test_vllm_s_own_experts_are_served_by_apply(served: Host, clock: Clock, report: Report) -> None:
    """`kimi_experts: vllm` brings the experts from the own kernel to vLLM's, by `apply`."""
    unit.wish(served, kimi_dense_weights="bf16", kimi_experts="vllm")
    unit.wish(served, kimi_start_timeout_s=int(max(60.0, clock.left_s)))
    wanted = unit.planned(served)
    began = time.monotonic()
    before = served.ssh("date '+%F %T'").strip()
    done = served.apply()
    report.figure(own_experts_apply_s=round(time.monotonic() - began))
    log = unit.said(served, 3000, since=before)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{log[-2000:]}"
    report.figure(own_experts_start_s=unit.start_seconds(served))
    assert wanted["experts"]["by"] == "vllm"
    assert "in the own kernel" not in log
    unit.verified(served)


def test_destroy_leaves_nothing(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, no file and no user."""
    began = time.monotonic()
    done = kimi_prov("destroy", served.inventory, "--yes")
    report.figure(destroy_s=round(time.monotonic() - began))
    assert done.returncode == 0, done.stdout + done.stderr
    assert unit.left(served) == ""
