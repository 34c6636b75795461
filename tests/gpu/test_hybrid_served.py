"""KTransformers under its unit: experts by AMX on the processors, some of them on one GPU.

In order, as the tests with vLLM: each goes on from what the one before has left.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import pytest
from gpu_report import processor
from machines import kimi_prov

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

# Of a layer of the cut model, as its row in the catalogue says.
EXPERTS = 384


@pytest.fixture(scope="module")
def plan(hybrid_host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    return unit.planned(hybrid_host)


def test_apply_serves_from_processors_and_gpu(
    hybrid_host: Host, plan: dict[str, Any], report: Report
) -> None:
    """`kimi-prov apply` brings a host to a model whose experts are on its processors and GPU."""
    engine, argv = plan["engine"], plan["instances"][0]["argv"]
    assert engine["name"] == "ktransformers"
    began = time.monotonic()
    done = hybrid_host.apply()
    said = unit.said(hybrid_host)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{said}"
    report.figure(
        apply_s=round(time.monotonic() - began),
        first_start_s=unit.start_seconds(hybrid_host),
        engine=f"{engine['name']} {engine['version']}",
        torch=engine.get("torch"),
        python=engine.get("python_version"),
        command=argv[1:],
        memory_used_mib=unit.memory_used(),
    )
    exposure = hybrid_host.ssh(f"systemd-analyze security {unit.UNIT} --no-pager")
    report.figure(exposure=re.findall(r"[\d.]+", exposure.strip().splitlines()[-1])[-1:])
    assert max(unit.memory_used()) > 1000


def test_experts_are_where_the_plan_put_them(
    served: Host, plan: dict[str, Any], report: Report
) -> None:
    """The engine runs with the plan's experts on the GPU, the others in kt-kernel's AMX build."""
    argv = plan["instances"][0]["argv"]
    on_gpu = int(argv[argv.index("--kt-num-gpu-experts") + 1])
    assert 0 < on_gpu < EXPERTS
    running = served.ssh(f"tr '\\0' ' ' < /proc/{unit.shown(served)['MainPID']}/cmdline")
    assert f"--kt-num-gpu-experts {on_gpu} " in running
    # Which of kt-kernel's libraries each process of the unit has mapped.
    mapped = served.ssh(
        f"for pid in $(cat /sys/fs/cgroup$(systemctl show -P ControlGroup {unit.UNIT})"
        "/cgroup.procs); do grep -oh '_kt_kernel_ext_[a-z0-9_]*' /proc/$pid/maps; done | sort -u",
        check=False,
    ).split()
    report.figure(experts_on_gpu=on_gpu, kt_kernel=mapped)
    assert mapped
    assert any("amx" in name for name in mapped) == bool(processor()["amx"])


def test_verify_passes_with_the_placement(served: Host, report: Report) -> None:
    """`kimi-prov verify` passes, the processes and their memory where the plan put them."""
    checks = unit.verified(served)
    report.figure(placement=[row.get("detail") for row in checks if row["name"] == "placement"])


def test_bench_measures_the_hybrid(serving: Host, report: Report) -> None:
    """`kimi-prov bench` measures the served model."""
    report.figure(bench=unit.benched(serving))


def test_a_killed_hybrid_is_served_again(serving: Host, clock: Clock, report: Report) -> None:
    """After kill -9 of the server it answers again, from what was compiled before."""
    first = unit.shown(serving)
    serving.ssh(f"kill -9 {first['MainPID']}")
    seconds = unit.wait_for_restart(serving, first["MainPID"], clock.a_start_s)
    report.figure(after_kill_of_server_s=seconds, start_from_caches_s=unit.start_seconds(serving))
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_a_second_apply_of_the_hybrid_changes_nothing(serving: Host, report: Report) -> None:
    """`apply` again changes nothing and leaves the engine running."""
    report.figure(second_apply_s=unit.applied_again(serving))


def test_destroy_of_the_hybrid_frees_the_gpu(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, no file, no user and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(served))
