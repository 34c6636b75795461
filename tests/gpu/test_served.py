"""The product itself on real GPUs: from a booted host to a chat, its failures, and back to nothing.

In order: each test goes on from what the one before has left, and what a machine that is lent for
half an hour shall have told first stands first.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import card_metrics
import engine_unit as unit
import pytest
from machines import kimi_prov
from waiting import until

from kimi_prov.contract import paths, protection
from kimi_prov.lab import operations as commands

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

    from kimi_prov.lab.gpus import GpuAccess

pytestmark = pytest.mark.gpu

# What the unit could be kept from beside what it is: tried with the engine, one by one if not
# all together.
RESTRICTIONS = {
    "IPv4 alone, no list of interfaces": [
        "RestrictAddressFamilies=",
        "RestrictAddressFamilies=AF_UNIX AF_INET",
    ],
    "no code that was written": ["MemoryDenyWriteExecute=yes"],
}
# Seconds in which they are tried, for others wait behind.
TRIED_S = 330.0
# More than what the unit takes for the last of a predecessor, on each card.
HELD_MIB = 4096
# For all cards together.
HOST_CACHE_GIB = 4


@pytest.fixture(scope="module")
def plan(host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    return unit.planned(host)


def test_a_host_boots_with_the_gpus(host: Host, given: GpuAccess, report: Report) -> None:
    """A container of this machine boots by systemd and lists each GPU by the driver's own tool."""
    cards = [name for name in given.devices if re.fullmatch(r"/dev/nvidia\d+", name)]
    assert len(host.ssh("nvidia-smi -L").splitlines()) == len(cards)
    assert host.ssh("systemctl is-system-running", check=False).strip() == "running"
    assert "Read-only" in host.ssh("touch $(realpath $(command -v nvidia-smi)) 2>&1", check=False)
    report.figure(cards=len(cards))


def test_units_are_held_to_their_devices(host: Host) -> None:
    """A unit sees the GPUs by the lines that the product's units have, and not without them."""
    options = " ".join(f"'{word}'" for word in protection.build_run_options("engine", gpus=True))
    run = "systemd-run --quiet --wait --pipe"
    assert "GPU 0" in host.ssh(f"{run} {options} nvidia-smi -L")
    closed = host.ssh(f"{run} --property=DevicePolicy=closed nvidia-smi -L 2>&1", check=False)
    assert "GPU 0" not in closed


def test_apply_serves_on_the_gpus(host: Host, plan: dict[str, Any], report: Report) -> None:
    """`kimi-prov apply` brings the host to a model that answers from all GPUs."""
    began = time.monotonic()
    done = host.apply()
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{unit.said(host)}"
    report.figure(
        apply_s=round(time.monotonic() - began),
        first_start_s=unit.start_seconds(host),
        engine=f"{plan['engine']['name']} {plan['engine']['version']}",
        torch=plan["engine"].get("torch"),
        python=plan["engine"].get("python_version"),
        command=plan["instances"][0]["argv"][1:],
    )
    used = unit.memory_used()
    assert all(mib > 1000 for mib in used), used
    report.figure(memory_used_mib=used)
    exposure = host.ssh(f"systemd-analyze security {unit.UNIT} --no-pager")
    report.figure(
        exposure=re.findall(r"[\d.]+", exposure.strip().splitlines()[-1])[-1:],
        # What it is open to, each with its weight.
        exposed_to=re.findall(r"^✗ (\S+)", exposure, re.MULTILINE),
    )


def test_verify_passes(served: Host) -> None:
    """`kimi-prov verify` finds keys, TLS, tools, streams and the closed port as they should be."""
    unit.verified(served)


def test_the_plan_s_memory_is_what_the_engine_says(
    served: Host, plan: dict[str, Any], report: Report
) -> None:
    """The weights and the cache that the plan counts on each card are those in the engine's log."""
    log = unit.said(served, 3000)
    weights = [float(word) for word in re.findall(r"Model loading took ([\d.]+) GiB", log)]
    tokens = [int(word.replace(",", "")) for word in re.findall(r"cache size: ([\d,]+) tok", log)]
    graphs = [float(word) for word in re.findall(r"Graph capturing .* took ([\d.]+) GiB", log)]
    counted = plan["memory"]
    # A rank loads its share, with what every rank holds in full.
    whole = counted["weights_bytes_per_gpu"] / 2**30
    report.figure(
        weights_gib={"plan": round(whole, 2), "log": weights[-1:]},
        cache_tokens={"plan": counted["kv_tokens_max"], "log": tokens[-1:]},
        graphs_gib=graphs[-1:],
    )
    assert weights, "no line tells the weights"
    assert tokens, "no line tells the cache"
    assert weights[-1] == pytest.approx(whole, rel=0.05)
    assert tokens[-1] == pytest.approx(counted["kv_tokens_max"], rel=0.05)


def test_the_stack_is_what_the_machine_shows(served: Host, report: Report) -> None:
    """The host's facts are this machine's driver, cards and links, and NCCL summed over them."""
    facts = json.loads(served.ssh(f"python3 -I {paths.ZIPAPP} probe"))
    facts = facts.get("facts", facts)
    said = _smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    cards = [line.split(", ") for line in said.splitlines()]
    nvidia = facts["nvidia"]
    assert nvidia["driver_loaded"] == cards[0][2]
    assert [(gpu["name_raw"], gpu["memory_total_bytes"] >> 20) for gpu in facts["gpus"]] == [
        (name, int(mib)) for name, mib, _ in cards
    ]
    topology = re.findall(r"^(?:\x1b\[\d*m)*GPU(\d+)\t(.*)$", _smi("topo", "-m"), re.MULTILINE)
    matrix = [
        [int(cell.strip()[2:]) if cell.strip().startswith("NV") else 0 for cell in line]
        for line in (row.split("\t")[: len(cards)] for _, row in topology)
    ]
    found = [[cell or 0 for cell in line] for line in (nvidia["nvlink"] or {}).get("matrix") or []]
    proof = json.loads(served.ssh(f"cat {paths.NCCL_STATE}")) if len(cards) > 1 else None
    report.figure(
        nvlink={key: (nvidia["nvlink"] or {}).get(key) for key in ("matrix", "links_per_gpu")},
        fabric=[gpu.get("fabric_state") for gpu in facts["gpus"]],
        nvswitch=nvidia["nvswitch"],
        nccl_proof=proof,
    )
    assert found == matrix
    assert proof is None or proof["driver"] == nvidia["driver_loaded"]


def _smi(*words: str) -> str:
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_second_apply_changes_nothing(served: Host, report: Report) -> None:
    """`apply` again changes nothing and leaves the engine running."""
    report.figure(second_apply_s=unit.applied_again(served))


def test_the_metrics_tell_each_card(served: Host, report: Report) -> None:
    """The collector, in its unit, tells each card's memory and use as the driver's tool does."""
    assert card_metrics.wrong_under_load(served, report) == []


def test_a_killed_worker_is_served_again(serving: Host, clock: Clock, report: Report) -> None:
    """After kill -9 of a worker the unit ends and answers again, from what was compiled before."""
    first = unit.shown(serving)
    worker = serving.ssh("pgrep -u kimi -f '^VLLM::Worker' | tail -1", check=False).strip()
    worker = worker or serving.ssh("pgrep -u kimi -f '^VLLM::EngineCore' | tail -1").strip()
    serving.ssh(f"kill -9 {worker}")
    seconds = unit.wait_for_restart(serving, first["MainPID"], clock.a_start_s)
    report.figure(after_kill_of_worker_s=seconds, start_from_caches_s=unit.start_seconds(serving))
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_a_start_waits_for_memory_and_names_who_holds_it(
    serving: Host, clock: Clock, report: Report
) -> None:
    """While another program holds the cards' memory a start waits and names it; then it serves."""
    serving.ssh(f"systemctl stop {unit.UNIT}", timeout=180)
    before = serving.ssh("date '+%F %T'").strip()
    try:
        unit.hold_memory(serving, HELD_MIB)
        serving.ssh(f"systemctl start --no-block {unit.UNIT}")
        waits = until(lambda: "waiting for the GPUs" in unit.said(serving, since=before), 60)
        state = unit.shown(serving)
        told = [
            line
            for line in unit.said(serving, since=before).splitlines()
            if "waiting for the GPUs" in line
        ]
    finally:
        unit.release_memory(serving)
    report.figure(told_while_memory_is_held=told)
    assert waits, unit.said(serving)
    assert state["ActiveState"] == "activating"
    seconds = unit.wait_for_restart(serving, "0", clock.a_start_s)
    report.figure(after_memory_came_free_s=seconds)
    assert "GPU 0: " in told[0]
    assert "python" in told[0]


def test_a_killed_server_is_served_again(serving: Host, clock: Clock, report: Report) -> None:
    """After kill -9 of the server its workers end with it, and it answers again."""
    # systemd counts every start of the last hours, those of the tests before as well.
    serving.ssh(f"systemctl reset-failed {unit.UNIT}")
    first = unit.shown(serving)
    serving.ssh(f"kill -9 {first['MainPID']}")
    seconds = unit.wait_for_restart(serving, first["MainPID"], clock.a_start_s)
    report.figure(after_kill_of_server_s=seconds)
    assert int(unit.shown(serving)["NRestarts"]) > int(first["NRestarts"])
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_bench_measures(serving: Host, report: Report) -> None:
    """`kimi-prov bench` measures the served model."""
    report.figure(bench=unit.benched(serving))


def test_it_serves_again_after_a_reboot(serving: Host, clock: Clock, report: Report) -> None:
    """After a reboot of the host the model is served again, and nobody did anything."""
    began = time.monotonic()
    commands.restart_host(serving.inventory, serving.name)
    assert until(lambda: unit.serves(serving), clock.a_start_s), unit.said(serving, 20)
    report.figure(after_reboot_s=round(time.monotonic() - began, 1))
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_further_restrictions_are_tried_with_the_engine(
    serving: Host, clock: Clock, report: Report
) -> None:
    """Each further restriction of the unit is tried with the engine, and what it stands is told."""
    end = time.monotonic() + TRIED_S
    tried: dict[str, str] = {}

    def stands(*names: str) -> bool:
        if time.monotonic() > end or clock.left_s < clock.least_s:
            return False
        unit.lay(serving, [line for name in names for line in RESTRICTIONS[name]])
        start = unit.restart(serving, clock.a_start_s)
        if start.reason is None or len(names) == 1:
            tried.update(dict.fromkeys(names, start.reason or f"stood, {start.seconds} s"))
        return start.reason is None

    try:
        stood = list(RESTRICTIONS)
        together = stands(*stood)
        if not together:
            stood = [name for name in RESTRICTIONS if stands(name)]
            # What stood alone has not stood together yet.
            together = bool(stood) and stands(*stood)
        if together:
            done = kimi_prov("verify", serving.inventory)
            exposure = serving.ssh(f"systemd-analyze security {unit.UNIT} --no-pager | tail -1")
            report.figure(
                stood_together=stood,
                verify_under_restrictions=done.returncode,
                exposure_with_restrictions=re.findall(r"[\d.]+", exposure)[-1:],
            )
    finally:
        unit.lay(serving, [])
        report.figure(restrictions=tried)
    assert set(tried) == set(RESTRICTIONS), "there was no time for the others"


def test_a_start_out_of_memory_names_the_figure_to_change(served: Host, report: Report) -> None:
    """`apply` names the figure to change where the cards have not the memory that a start wants."""
    file = served.inventory / "group_vars" / "kimi.yml"
    before = file.read_text()
    began = time.monotonic()
    try:
        unit.wish(served, kimi_engine_args={"gpu-memory-utilization": 0.999})
        done = served.apply()
    finally:
        file.write_text(before)
    report.figure(out_of_memory_s=round(time.monotonic() - began), out_of_memory=_why(done.stderr))
    assert done.returncode == 1, done.stdout[-2000:]
    assert any("gpu-memory-utilization" in line for line in _why(done.stderr)), done.stderr


def _why(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if re.match(r"\s*(why|fix):", line)]


def test_experts_apart_and_an_8_bit_cache_are_served(
    served: Host, clock: Clock, report: Report
) -> None:
    """Whole experts on each card and an 8-bit cache come by `apply`, also after a failed one."""
    unit.wish(
        served,
        kimi_kv_dtype="fp8",
        kimi_engine_args={"enable-expert-parallel": True},
        kimi_start_timeout_s=int(max(60.0, clock.left_s)),
    )
    began = time.monotonic()
    done = served.apply()
    report.figure(second_layout_s=round(time.monotonic() - began))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{unit.said(served)}"
    log = unit.said(served, 3000)
    report.figure(
        second_layout={
            "backend": re.findall(r"Using (\S+) attention backend", log)[-1:],
            "tokens": re.findall(r"cache size: ([\d,]+) tokens", log)[-1:],
            "start_s": unit.start_seconds(served),
        }
    )
    command = served.ssh("pgrep -af vllm.entrypoints")
    assert "--enable-expert-parallel" in command
    assert "fp8" in command


def test_filtered_weights_and_a_cache_in_host_memory_are_served(
    served: Host, clock: Clock, report: Report
) -> None:
    """Ranks that read their own experts alone, and a cache in the host's memory, by `apply`."""
    unit.wish(
        served,
        kimi_kv_dtype="auto",
        kimi_engine_args={
            "enable-expert-parallel": True,
            "enable-ep-weight-filter": True,
            "kv-offloading-size": HOST_CACHE_GIB,
        },
        kimi_start_timeout_s=int(max(60.0, clock.left_s)),
    )
    began = time.monotonic()
    done = served.apply()
    report.figure(third_layout_s=round(time.monotonic() - began))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{unit.said(served)}"
    log = unit.said(served, 3000)
    report.figure(
        third_layout={
            "filtered": re.findall(r"[^\n]*(?i:weight filter)[^\n]*", log)[-1:],
            "host_cache": re.findall(r"[^\n]*(?i:offload)[^\n]*", log)[-3:],
            "start_s": unit.start_seconds(served),
        }
    )
    command = served.ssh("pgrep -af vllm.entrypoints")
    assert "--enable-ep-weight-filter" in command
    assert f"--kv-offloading-size {HOST_CACHE_GIB}" in command
    unit.verified(served)


def test_destroy_frees_the_gpus(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, no file, no user and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(served))
    report.figure(memory_after_mib=unit.memory_used())
