"""The driver role where the kernel is the machine's own: it waits for another boot id.

GPUs, module and nvidia-smi are stand-ins, as in test_driver.py; kernel and restart are real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nvidia
import pytest
import yaml
from machines import kimi_prov, make_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
# As a guest sees the loopback of the control machine.
CONTROL = "10.0.2.2"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """An emulated machine with eight GPUs and a driver that is too old."""
    made = make_lab(tmp_path_factory.mktemp("driver") / "inv", "10.93.63", nodes=["gpu9"])
    hosts = made.inventory / "hosts.yml"
    lab = yaml.safe_load(hosts.read_text())
    lab["all"]["vars"].update(lab_kind="qemu", lab_memory_mb=6144)
    hosts.write_text(yaml.safe_dump(lab))
    repo = nvidia.repository(tmp_path_factory.mktemp("nvidia"), "127.0.0.1", CONTROL)
    file = made.inventory / "group_vars" / "kimi.yml"
    variables = {
        **yaml.safe_load(file.read_text()),
        "kimi_nvidia_repo_url": repo.url,
        "kimi_nvidia_repo_key_fingerprint": repo.fingerprint,
        "kimi_model": "kimi-k2.5",
        "kimi_weights_source": None,
        "kimi_engine_stand_in": "file:///opt/models/kimi-k2-lab",
        "nvidia_driver_reboot_ok": True,
        "nvidia_driver_reboot_timeout_s": 900,
    }
    file.write_text(yaml.safe_dump(variables))
    machine = made.hosts["gpu9"]
    try:
        made.up()
        nvidia.gpus(machine)
        nvidia.install(machine, repo, nvidia.OLD)
        yield machine
    finally:
        repo.close()
        made.down()


def test_it_waits_for_another_boot_and_for_the_gpus(emulated: Host) -> None:
    boot = emulated.ssh("cat /proc/sys/kernel/random/boot_id")
    command = ("apply", emulated.inventory, "--tags", "nvidia_driver")
    done = kimi_prov(*command, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") != boot
    told = emulated.ssh("nvidia-smi -q -x | grep driver_version")
    assert nvidia.NEW in told
    again = kimi_prov(*command, timeout=3000)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout
    assert emulated.ssh("cat /proc/sys/kernel/random/boot_id") != boot
