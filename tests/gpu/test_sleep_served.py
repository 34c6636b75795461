"""An engine that sleeps in place of ending, on real cards: by `kimi_idle_action: sleep`.

In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import engine_unit as unit
import pytest
from groups import API_PORT
from machines import kimi_prov
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.lifecycle import run

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

# What a CUDA context, graphs and communicators keep of each card while the engine sleeps.
LEFT_MIB = 6144
HELD_MIB = 100_000
# As kimi-idle.service begins it, by what it saw last.
_REST = f"""
import json, subprocess, sys
program = ["/usr/bin/python3", "-I", {paths.ZIPAPP!r}, "rest"]
subprocess.run([*program, "idle"], check=True)
seen = json.load(open({paths.IDLE!r}))
job = {{"job": {run.SLEEP!r}, "used": seen["used"], "drain_s": 60}}
json.dump(job, open({paths.REST_JOB!r}, "w"))
sys.exit(subprocess.call([*program, "run"]))
"""


def rest(host: Host) -> float:
    """Have the machine rest as after its idle time; return the seconds."""
    began = time.monotonic()
    said = host.ssh(f"python3 - <<'EOF'\n{_REST}\nEOF", timeout=300)
    assert "staying awake" not in said, said
    return round(time.monotonic() - began, 1)


@pytest.fixture(scope="module")
def key(host: Host) -> str:
    """A client's key: the one of verify wakes nobody."""
    return kimi_prov("key", host.inventory, "--add", "sleeper").stdout.split()[-1]


def ask(host: Host, key: str) -> tuple[str, float]:
    """Ask for a greedy answer through the opened port; return it with the seconds."""
    _, pin = host.door()
    began = time.monotonic()
    body = {
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    reply = api_client.request_chat(
        api_client.Endpoint(host.address, API_PORT, pin, 300), key, body
    )
    message = reply.json()["choices"][0]["message"]
    return json.dumps(message), round(time.monotonic() - began, 1)


def state(host: Host) -> str:
    done = kimi_prov("status", host.inventory, "--format", "json")
    return str(json.loads(done.stdout)["hosts"][host.name]["state"])


def available_gib(host: Host) -> float:
    return int(host.ssh("awk '/MemAvailable/ {print $2}' /proc/meminfo")) / 2**20


def test_apply_serves_with_an_engine_that_may_sleep(host: Host, report: Report) -> None:
    """`kimi-prov apply` with `kimi_idle_action: sleep` serves."""
    unit.wish(host, kimi_idle_stop="2h", kimi_idle_action="sleep", kimi_wake="hold")
    plan = unit.planned(host)
    began = time.monotonic()
    done = host.apply()
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{unit.said(host)}"
    report.figure(
        apply_s=round(time.monotonic() - began),
        first_start_s=unit.start_seconds(host),
        engine=f"{plan['engine']['name']} {plan['engine']['version']}",
        planned_gib=plan["memory"]["weights_bytes_per_gpu"] / 2**30,
        command=plan["instances"][0]["argv"][1:],
    )
    folder = host.ssh("stat -c '%a %U' /run/kimi-serve-0").strip()
    assert folder == "700 kimi"


def test_it_sleeps_and_a_request_wakes_it(served: Host, key: str, report: Report) -> None:
    """Asleep the cards are free and memory has the weights; the same answer comes after a wake."""
    process = unit.shown(served)["MainPID"]
    expected, asked_s = ask(served, key)
    used, free = unit.memory_used(), available_gib(served)
    asleep_s = rest(served)
    left = unit.memory_used()
    told = state(served)
    report.figure(
        asleep_s=asleep_s,
        asked_awake_s=asked_s,
        used_mib={"awake": used, "asleep": left},
        host_gib_taken=round(free - available_gib(served), 2),
    )
    assert told == "asleep"
    assert max(left) < LEFT_MIB
    answer, seconds = ask(served, key)
    report.figure(first_request_s=seconds)
    assert answer == expected
    assert unit.shown(served)["MainPID"] == process
    assert state(served) == "serving"


def test_a_second_sleep_is_quick_and_start_wakes_it(served: Host, report: Report) -> None:
    """Host memory stays pinned: the next sleep takes less; `kimi-prov start` wakes too."""
    process = unit.shown(served)["MainPID"]
    seconds = rest(served)
    began = time.monotonic()
    done = kimi_prov("start", served.inventory)
    report.figure(asleep_again_s=seconds, start_s=round(time.monotonic() - began, 1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert unit.shown(served)["MainPID"] == process
    assert state(served) == "serving"


def test_while_another_program_has_the_cards_it_sleeps_on(served: Host, report: Report) -> None:
    """A request is told who holds the memory; the engine stays, and wakes once it is free."""
    process = unit.shown(served)["MainPID"]
    rest(served)
    try:
        unit.hold_memory(served, HELD_MIB)
        done = kimi_prov("start", served.inventory)
        report.figure(told_while_held=(done.stdout + done.stderr)[-600:])
        assert done.returncode != 0
        assert "sleeps on" in done.stdout + done.stderr
        assert state(served) == "asleep"
    finally:
        unit.release_memory(served)
    assert kimi_prov("start", served.inventory).returncode == 0
    assert unit.shown(served)["MainPID"] == process


def test_an_engine_killed_in_its_sleep_is_started(
    served: Host, key: str, clock: Clock, report: Report
) -> None:
    """After kill -9 of a sleeping engine the machine is asleep, and a request starts it."""
    if clock.left_s < clock.a_start_s:
        pytest.fail("not run: there is no time for a start")
    expected, _ = ask(served, key)
    rest(served)
    served.ssh(f"systemctl kill -s KILL {unit.UNIT}")
    # systemd waits before it looks whether the unit may start again.
    assert until(lambda: state(served) == "asleep", 60)
    answer, seconds = ask(served, key)
    report.figure(after_kill_in_sleep_s=seconds)
    assert answer == expected


def test_destroy_after_a_sleep_frees_the_gpus(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(served), memory_after_mib=unit.memory_used())
