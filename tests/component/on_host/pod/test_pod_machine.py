"""What a pod is told by cgroups, nvidia-smi and the resolver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.engine import placement
from kimi_prov.on_host.pod import limits

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        (None, None),
        ("printf 'GPU-1\\nGPU-2\\n'", 2),
        ("echo 'no devices were found'", 0),
        ("exit 9", 0),
    ],
)
def test_gpus_are_those_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, seen: int | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert limits.read_limits(str(tmp_path)).gpus == seen


@pytest.mark.parametrize(
    ("files", "memory", "cpus"),
    [
        ({"memory.max": "1073741824", "cpu.max": "50000 100000"}, GIB, 0.5),
        ({"memory.max": "max", "cpu.max": "max 100000"}, 4 * GIB, None),
        (
            {
                "memory/memory.limit_in_bytes": "2147483648",
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            2 * GIB,
            1.5,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            4 * GIB,
            None,
        ),
    ],
)
def test_both_versions_of_cgroups_are_read(
    tmp_path: Path, files: dict[str, str], memory: int, cpus: float | None
) -> None:
    for name, text in {**files, "../../../proc/meminfo": "MemTotal: 4194304 kB"}.items():
        path = tmp_path / "sys/fs/cgroup" / name
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = limits.read_limits(str(tmp_path))
    allowed = float(len(placement.list_available_cpus()))
    assert (found.memory, found.cpus) == (memory, min(allowed, cpus or allowed))


def test_an_address_that_is_not_found_is_told() -> None:
    notes: list[str] = []
    assert placement.choose_network({}, "kimi-0.invalid", notes) == {}
    (note,) = notes
    assert "towards kimi-0.invalid this node has no address" in note
    found = placement.choose_network({}, "127.0.0.1", notes)
    assert (found["VLLM_HOST_IP"], found["GLOO_SOCKET_IFNAME"], len(notes)) == (
        "127.0.0.1",
        "lo",
        1,
    )
