"""The product itself on real GPUs: from a booted host to a chat, its failures, and back to nothing.

In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from machines import kimi_prov, newest_run
from waiting import until

from kimi_prov.contract import protection

if TYPE_CHECKING:
    from gpu_report import Report
    from machines import Host

    from kimi_prov.lab.gpus import Given

pytestmark = pytest.mark.gpu

UNIT = "kimi-serve@0.service"
# A start compiles, and with one processor in a container it takes its time.
STARTS_S = 900.0


def shown(host: Host, *names: str) -> dict[str, str]:
    """Properties of the unit."""
    asked = " ".join(f"-p {name}" for name in names)
    lines = host.ssh(f"systemctl show {UNIT} {asked}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def memory_used() -> list[int]:
    """MiB in use on each card, as this machine's own nvidia-smi tells."""
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in said.stdout.split()]


def served_again(host: Host, before: str) -> float:
    """Seconds until the unit runs again with another first process, and is active."""
    began = time.monotonic()

    def again() -> bool:
        now = shown(host, "MainPID", "ActiveState")
        assert now["ActiveState"] not in {"inactive", "failed"}, "the unit stays down"
        return now["ActiveState"] == "active" and now["MainPID"] not in {"0", before}

    assert until(again, STARTS_S), host.ssh(f"systemctl status {UNIT} | tail -20", check=False)
    return round(time.monotonic() - began, 1)


@pytest.fixture(scope="module")
def plan(host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    done = kimi_prov("plan", host.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return next(iter(json.loads(done.stdout)["hosts"].values()))  # type: ignore[no-any-return]


def test_a_host_boots_with_the_gpus(host: Host, given: Given, report: Report) -> None:
    """A container of this machine boots by systemd and lists each GPU by the driver's own tool."""
    cards = [name for name in given.devices if re.fullmatch(r"/dev/nvidia\d+", name)]
    assert len(host.ssh("nvidia-smi -L").splitlines()) == len(cards)
    assert host.ssh("systemctl is-system-running", check=False).strip() == "running"
    assert "Read-only" in host.ssh("touch $(realpath $(command -v nvidia-smi)) 2>&1", check=False)
    report.figure(cards=len(cards))


def test_units_are_held_to_their_devices(host: Host) -> None:
    """A unit sees the GPUs by the lines that the product's units have, and not without them."""
    options = " ".join(f"'{word}'" for word in protection.options("engine", gpus=True))
    run = "systemd-run --quiet --wait --pipe"
    assert "GPU 0" in host.ssh(f"{run} {options} nvidia-smi -L")
    closed = host.ssh(f"{run} --property=DevicePolicy=closed nvidia-smi -L 2>&1", check=False)
    assert "GPU 0" not in closed


def test_apply_serves_on_the_gpus(host: Host, plan: dict[str, Any], report: Report) -> None:
    """`kimi-prov apply` brings the host to a model that answers from all GPUs."""
    began = time.monotonic()
    done = host.apply()
    log = host.ssh(f"journalctl -u {UNIT} -o cat --no-pager | tail -40", check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{log}"
    report.figure(
        apply_s=round(time.monotonic() - began),
        engine=f"{plan['engine']['name']} {plan['engine']['version']}",
        torch=plan["engine"].get("torch"),
        python=plan["engine"].get("python_version"),
        command=plan["instances"][0]["argv"][1:],
    )
    used = memory_used()
    assert all(mib > 1000 for mib in used), used
    report.figure(memory_used_mib=used)
    exposure = host.ssh(f"systemd-analyze security {UNIT} --no-pager | tail -1")
    report.figure(exposure=re.findall(r"[\d.]+", exposure)[-1:])


def test_verify_passes(served: Host) -> None:
    """`kimi-prov verify` finds keys, TLS, tools, streams and the closed port as they should be."""
    done = kimi_prov("verify", served.inventory, "--format", "json")
    checks = next(iter(json.loads(done.stdout)["hosts"].values()))["checks"]
    assert [row for row in checks if row["status"] == "fail"] == []
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_apply_changes_nothing(served: Host, report: Report) -> None:
    """`apply` again changes nothing and leaves the engine running."""
    before = shown(served, "MainPID")
    began = time.monotonic()
    done = served.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(served.inventory) / "result.json").read_text())
    assert all(row["changed"] == 0 for row in result["hosts"].values()), result
    assert shown(served, "MainPID") == before
    report.figure(second_apply_s=round(time.monotonic() - began))


def test_bench_measures(served: Host, report: Report) -> None:
    """`kimi-prov bench` measures the served model."""
    done = kimi_prov("bench", served.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report.figure(bench=json.loads(done.stdout))


@pytest.mark.parametrize("killed", ["worker", "server"])
def test_a_killed_process_is_served_again(served: Host, report: Report, killed: str) -> None:
    """After kill -9 the unit restarts and answers, with what was compiled before."""
    first = shown(served, "MainPID", "NRestarts")
    pid = first["MainPID"]
    if killed == "worker":
        # The last that the server started and that holds memory of a card.
        pid = served.ssh(
            "nvidia-smi --query-compute-apps=pid --format=csv,noheader >/dev/null; "
            "pgrep -u kimi -f 'VLLM::Worker|VllmWorker|VLLM::EngineCore' | tail -1"
        ).strip()
    assert pid
    served.ssh(f"kill -9 {pid}")
    report.figure(**{f"after_kill_of_{killed}_s": served_again(served, first["MainPID"])})
    assert int(shown(served, "NRestarts")["NRestarts"]) > int(first["NRestarts"])
    assert kimi_prov("status", served.inventory).returncode == 0


def test_destroy_frees_the_gpus(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, no file and no memory of a card in use."""
    done = kimi_prov("destroy", served.inventory, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert served.ssh("systemctl list-units 'kimi*' --all --no-legend").strip() == ""
    assert until(lambda: max(memory_used()) < 1000, 60), memory_used()
    report.figure(memory_after_mib=memory_used())
