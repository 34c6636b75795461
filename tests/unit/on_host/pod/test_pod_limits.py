"""What a pod was given, read from trees of cgroups, and what of it is too small for a plan."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.on_host.engine import placement
from kimi_prov.on_host.pod import limits

GIB = 1 << 30


def plan(gpus: int = 0, tensor: int = 1, size: int = 10 * GIB) -> dict[str, Any]:
    return {
        "parallel": {"tensor": tensor, "pipeline": 1, "data": 1},
        "memory": {
            "host_parts": [
                {"kind": "overhead", "bytes": size},
                {"kind": "system", "bytes": 500 * GIB},
            ]
        },
        "instances": [{"gpus": list(range(gpus))}],
    }


ENOUGH = limits.Given(memory=11 * GIB, shm=GIB, cpus=2, gpus=0)


def test_exactly_enough_is_enough() -> None:
    assert limits.list_refusals(plan(), ENOUGH) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"memory": 11 * GIB - 1}, "may use 11.0 GiB of memory, and the engine needs 11.0 GiB"),
        ({"memory": 4 * GIB}, "may use 4.0 GiB of memory, and the engine needs 11.0 GiB"),
        ({"shm": 64 << 20}, "/dev/shm has 64.0 MiB, and the engine's processes need 1.0"),
        ({"cpus": 0.5}, "the time of 0.5 processors, and the engine needs 1"),
    ],
)
def test_too_little_is_refused_with_its_figure(changed: dict[str, Any], told: str) -> None:
    (found,) = limits.list_refusals(plan(), limits.Given(**{**vars(ENOUGH), **changed}))
    assert told in found
    assert "; " in found


def test_gpus_and_the_memory_of_several_workers() -> None:
    has = limits.Given(memory=17 * GIB, shm=GIB, cpus=8, gpus=7)
    found = limits.list_refusals(plan(gpus=8, tensor=8), has)
    assert ["needs 18.0 GiB, 8.0 GiB of it in /dev/shm" in found[0], len(found)] == [True, 4]
    assert "sees 7 GPUs, and the engine is planned for 8" in found[2]
    assert "8 processors, and the engine needs 9" in found[3]


def test_a_driver_that_is_not_mounted_is_told_apart_from_too_few_gpus() -> None:
    has = limits.Given(None, None, 9, None)
    (found,) = limits.list_refusals(plan(gpus=8, tensor=8), has)
    assert "nvidia-smi is not in the container, and the engine is planned for 8 GPUs" in found
    assert limits.list_refusals(plan(), has) == []


def test_no_limit_is_no_refusal() -> None:
    assert limits.list_refusals(plan(), limits.Given(None, None, 2, 0)) == []


def test_threads_are_those_that_there_is_time_for() -> None:
    bind = "VLLM_CPU_OMP_THREADS_BIND"
    notes: list[str] = []
    assert placement.choose_threads({bind: "0-3"}, [0, 1, 2, 3], 4, notes) == {}
    assert notes == []
    assert placement.choose_threads({bind: "0-3"}, [0, 1, 2, 3, 4], 2, notes) == {bind: "0-1"}
    assert placement.choose_threads({bind: "0-3"}, [2, 3, 8, 9], 4, notes) == {bind: "2-3,8-9"}
    assert placement.choose_threads({bind: "0-3"}, [64, 65, 66, 67, 68, 69], 6, notes) == {
        bind: "64-67"
    }
    assert len(notes) == 3
    assert placement.choose_threads({}, [0], 1, notes) == {}
