"""One model over two lab hosts with a GPU each: a pipeline, the network by NCCL, tensor parallel.

In order: each test goes on from what the one before has left. NCCL takes the two hosts for two
machines (their names differ), so all that is between them goes by the lab's network.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import pytest
from groups import API_PORT, SERVED
from machines import kimi_prov
from waiting import until

from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from groups import Group
    from machines import Host

pytestmark = pytest.mark.gpu

TOKENS = 128
TENSOR = {"tensor-parallel-size": 2, "pipeline-parallel-size": 1}
# A port of InfiniBand that is none: the planner keeps tensor parallel inside a host without one.
# NCCL finds no device of that name, and takes the lab's network.
MADE_PORT = """
rm -rf /run/class; cp -a /sys/class /run/class 2>/dev/null
port=/run/class/infiniband/made0/ports/1
mkdir -p $port && echo InfiniBand > $port/link_layer && echo '4: ACTIVE' > $port/state &&
echo '400 Gb/sec (4X NDR)' > $port/rate && mount --bind /run/class /sys/class
"""


@pytest.fixture
def served(group: Group, report: Report) -> Group:
    """The group, where apply has served before."""
    told = report.rows.get("test_apply_serves_over_both", {})
    if told.get("outcome") != "passed":
        pytest.fail("apply has not served, so there is nothing to look at")
    return group


def reported(command: str, group: Group) -> dict[str, Any]:
    """What a command says of each host; it found nothing wrong."""
    done = kimi_prov(command, group.lab.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return dict(json.loads(done.stdout)["hosts"])


def applied(group: Group) -> int:
    """Seconds of an `apply` that succeeded."""
    began = time.monotonic()
    done = kimi_prov("apply", group.lab.inventory)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, f"{said}\n{group.told()}"
    return round(time.monotonic() - began)


def tokens_per_s(group: Group) -> float:
    """Tokens a second of one answer, from the request to its end."""
    key, pin = group.door
    body = {"messages": [{"role": "user", "content": "1"}], "max_tokens": TOKENS}
    body |= {"min_tokens": TOKENS, "ignore_eos": True}
    began = time.monotonic()
    answer = api_client.request_chat(
        api_client.Endpoint(group.head.address, API_PORT, pin, 120), key, body
    )
    assert answer.status == SERVED, answer
    return round(TOKENS / (time.monotonic() - began), 1)


def logged(host: Host, group: Group) -> dict[str, list[str]]:
    """What the engine of a host says of its layout, its memory and NCCL."""
    log = group.journal(host, 3000)
    return {
        "ranks": re.findall(r"world_size=\d+ rank=\d+ local_rank=\d+", log)[-1:],
        "weights_gib": re.findall(r"Model loading took ([\d.]+) GiB", log)[-1:],
        "cache_tokens": re.findall(r"cache size: ([\d,]+) tok", log)[-1:],
        "nccl": re.findall(r"vLLM is using nccl==(\S+)", log)[-1:],
        "profiling_s": re.findall(r"init engine .* took ([\d.]+) s", log)[-1:],
    }


def test_each_host_has_a_card_of_its_own(group: Group) -> None:
    """Of two hosts on one machine each boots with one GPU, and sees no other."""
    seen = {}
    for host in group.members:
        listed = host.ssh("nvidia-smi -L").splitlines()
        assert len(listed) == 1, listed
        seen[host.name] = re.findall(r"UUID: (\S+?)\)", listed[0])[0]
        assert len(host.ssh("ls /dev | grep -E '^nvidia[0-9]+$'").split()) == 1
        assert host.ssh("systemctl is-system-running", check=False).strip() == "running"
    assert len({*seen.values()}) == len(group.members)


def test_the_plan_is_a_pipeline_over_both(group: Group, report: Report) -> None:
    """The plan is tensor parallel inside a host and stages across, and nothing blocks it."""
    plans = reported("plan", group)
    for host in group.members:
        argv = plans[host.name]["instances"][0]["argv"]
        words = dict(itertools.pairwise(argv))
        assert words["--nnodes"] == "2"
        assert words["--pipeline-parallel-size"] == "2", argv
        assert words.get("--tensor-parallel-size", "1") == "1"
        assert plans[host.name]["driver"]["action"] == "none"
        assert plans[host.name]["driver"]["gpus"] == 1
    head = plans[group.head.name]
    report.figure(
        cards=len(group.members),
        engine=f"{head['engine']['name']} {head['engine']['version']}",
        torch=head["engine"].get("torch"),
        python=head["engine"].get("python_version"),
        command=head["instances"][0]["argv"][1:],
        planned={key: head["memory"][key] for key in ("weights_bytes_per_gpu", "kv_tokens_max")},
    )


def test_apply_serves_over_both(group: Group, report: Report) -> None:
    """`kimi-prov apply` brings two hosts to one model, a stage of its layers on each GPU."""
    seconds = applied(group)
    report.figure(apply_s=seconds, first_start_s=unit.start_seconds(group.head))
    assert group.chat().status == SERVED
    used = unit.memory_used()
    report.figure(memory_used_mib=used, **{h.name: logged(h, group) for h in group.members})
    assert sum(mib > 1000 for mib in used) == len(group.members), used
    report.figure(pipeline_tokens_per_s=tokens_per_s(group))


def test_verify_passes_with_the_network_by_nccl(served: Group, report: Report) -> None:
    """`kimi-prov verify` finds all as it should be, the hosts' network measured by NCCL."""
    checks = reported("verify", served)[served.head.name]["checks"]
    found = {row["name"]: row for row in checks}
    report.figure(verify={name: row["status"] for name, row in found.items()})
    report.figure(network=found["network"].get("detail"))
    assert found["chat"]["status"] == "ok"
    assert found["network"]["status"] == "ok", found["network"]
    assert "nccl" in str(found["network"]["detail"]).lower()


def test_a_killed_worker_of_the_rank_is_served_again(
    served: Group, clock: Clock, report: Report
) -> None:
    """After kill -9 of the rank's worker both hosts start again together, and it answers."""
    rank = served.members[-1]
    worker = rank.ssh("pgrep -u kimi -f '^VLLM::Worker' | tail -1", check=False).strip()
    victim = worker or served.worker(rank)
    recovery = served.harmed(lambda: rank.ssh(f"kill -9 {victim}"), clock.a_start_s)
    report.figure(
        after_kill_of_worker_s=round(recovery.took_s, 1),
        start_from_caches_s=unit.start_seconds(served.head),
        longest_request_s=round(max(answer.took_s for answer in recovery.answers), 1),
    )


def test_tensor_parallel_over_tcp_is_refused(served: Group) -> None:
    """Tensor parallel over hosts that have TCP alone between them is refused by the plan."""
    file = served.lab.inventory / "group_vars" / "kimi.yml"
    before = file.read_text()
    try:
        unit.wish(served.head, kimi_engine_args=TENSOR)
        done = kimi_prov("plan", served.lab.inventory, "--format", "json")
    finally:
        file.write_text(before)
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-2000:]
    assert "group.rdma" in done.stdout


def test_tensor_parallel_over_both_is_served(served: Group, clock: Clock, report: Report) -> None:
    """Each layer over both hosts comes by `apply`; a port of InfiniBand is made up for the plan."""
    for host in served.members:
        host.ssh(MADE_PORT)
    left = max(60.0, clock.left_s)
    unit.wish(served.head, kimi_engine_args=TENSOR, kimi_start_timeout_s=int(left))
    before = served.starts()
    seconds = applied(served)
    report.figure(tensor_apply_s=seconds, tensor_start_s=unit.start_seconds(served.head))
    now = served.starts()
    assert all(now[name] != start for name, start in before.items())
    assert "--tensor-parallel-size 2" in served.head.ssh("pgrep -af -- --nnodes")
    assert served.chat().status == SERVED
    report.figure(
        tensor={host.name: logged(host, served) for host in served.members},
        tensor_tokens_per_s=tokens_per_s(served),
        tensor_memory_used_mib=unit.memory_used(),
    )


def test_destroy_leaves_nothing_on_both(group: Group, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user on either, and no memory of a card."""
    began = time.monotonic()
    done = kimi_prov("destroy", group.lab.inventory, "--yes")
    report.figure(destroy_s=round(time.monotonic() - began))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [unit.left(host) for host in group.members] == [""] * len(group.members)
    assert until(lambda: max(unit.memory_used()) < 1000, 60), unit.memory_used()
    report.figure(memory_after_mib=unit.memory_used())
