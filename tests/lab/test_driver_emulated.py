"""The driver role where the kernel is the machine's own: it waits for another boot id.

GPUs, module and nvidia-smi are stand-ins, as in test_driver.py; kernel and restart are real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nvidia
import pytest
from machines import kimi_prov

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
# As a guest sees the loopback of the control machine.
CONTROL = "10.0.2.2"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """An emulated machine with eight GPUs and a driver that is too old."""
    with nvidia.machines(
        tmp_path_factory.mktemp("driver"),
        "10.93.63",
        {"gpu9": nvidia.OLD},
        control=("127.0.0.1", CONTROL),
        settings={"lab_kind": "qemu", "lab_memory_mb": 6144},
        nvidia_driver_reboot_timeout_s=900,
    ) as (made, _repo):
        yield made.hosts["gpu9"]


def test_it_waits_for_another_boot_and_for_the_gpus(emulated: Host) -> None:
    boot = emulated.ssh("cat /proc/sys/kernel/random/boot_id")
    command = ("apply", emulated.inventory, "--tags", "nvidia_driver")
    done = kimi_prov(*command, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") != boot
    assert nvidia.running(emulated) == nvidia.NEW
    restarted = emulated.ssh("cat /proc/sys/kernel/random/boot_id")
    again = kimi_prov(*command, timeout=3000)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") == restarted
