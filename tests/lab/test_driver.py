"""The driver role against a repository of real packages: there, back, and every way in between.

The GPUs, their module and nvidia-smi are stand-ins (tests/lab/nvidia.py); a restart of the
container counts as a restart. An emulated machine restarts in test_driver_emulated.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nvidia
import pytest
import yaml
from machines import KIMI_PROV, kill_tree_when, make_lab

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab
NETWORK = "10.93.62"
FAST = {"nvidia_driver_answer_timeout_s": 5, "nvidia_driver_reboot_timeout_s": 120}


def apply(host: Host, *more: str) -> subprocess.CompletedProcess[str]:
    return host.apply("--tags", "nvidia_driver", *more)


def told(path: Path, **variables: object) -> tuple[str, str]:
    path.write_text(yaml.safe_dump(variables))
    return "-e", f"@{path}"


def installed(host: Host) -> dict[str, str]:
    """Packages of the driver: name to version and dpkg's letters."""
    text = host.ssh(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' '*nvidia*' libcuda1"
    )
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2][1] == "i"}


def versions(host: Host) -> set[str]:
    return {version.removesuffix("-1") for version in installed(host).values()}


def running(host: Host) -> str:
    return host.ssh("nvidia-smi -q -x | sed -n 's/.*<driver_version>\\(.*\\)<.*/\\1/p'").strip()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine with eight GPUs, a switch, and a driver that is too old."""
    made = make_lab(tmp_path_factory.mktemp("driver") / "inv", NETWORK, nodes=["gpu1"])
    made.up()
    repo = nvidia.repository(tmp_path_factory.mktemp("nvidia"), f"{NETWORK}.1")
    file = made.inventory / "group_vars" / "kimi.yml"
    variables = {
        **yaml.safe_load(file.read_text()),
        **FAST,
        "kimi_nvidia_repo_url": repo.url,
        "kimi_nvidia_repo_key_fingerprint": repo.fingerprint,
        # What needs the new driver is Kimi's INT4; what could be served here is the tiny model.
        "kimi_model": "kimi-k2.5",
        "kimi_weights_source": None,
        "kimi_engine_stand_in": "file:///opt/models/kimi-k2-lab",
        "nvidia_driver_reboot_ok": True,
    }
    file.write_text(yaml.safe_dump(variables))
    machine = made.hosts["gpu1"]
    nvidia.gpus(machine)
    nvidia.install(machine, repo, nvidia.OLD)
    assert running(machine) == nvidia.OLD
    yield machine
    repo.close()
    made.down()


@pytest.fixture
def untouched(host: Host) -> Iterator[None]:
    """What fails here has changed no package and restarted nothing."""
    before = installed(host), host.ssh("cut -d' ' -f22 /proc/1/stat")
    yield
    assert (installed(host), host.ssh("cut -d' ' -f22 /proc/1/stat")) == before
    assert versions(host) == {nvidia.OLD}


@pytest.mark.usefixtures("untouched")
def test_without_consent_nothing_is_installed(host: Host, tmp_path: Path) -> None:
    done = apply(host, *told(tmp_path / "told.yml", nvidia_driver_reboot_ok=False))
    assert done.returncode == 3, done.stderr
    assert "driver.reboot" in done.stderr
    assert "nvidia_driver_reboot_ok: true" in done.stderr


@pytest.mark.usefixtures("untouched")
def test_check_on_a_virgin_host_says_what_would_be_done(host: Host) -> None:
    done = apply(host, "--check")
    assert done.returncode == 0, done.stderr
    assert "Say what would be done" in done.stdout
    assert host.ssh("ls /etc/apt/sources.list.d /etc/apt/preferences.d").count("kimi") == 0


@pytest.mark.usefixtures("untouched")
def test_a_hold_and_secure_boot_are_named_together(host: Host) -> None:
    firmware = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    host.ssh(
        "apt-mark hold nvidia-driver-cuda && mount -o remount,rw /sys "
        f"&& mkdir -p /sys/firmware/efi/efivars && printf '\\6\\0\\0\\0\\1' > {firmware}"
    )
    try:
        done = apply(host)
    finally:
        host.ssh("apt-mark unhold nvidia-driver-cuda; rm -r /sys/firmware")
    assert done.returncode == 3, done.stderr
    assert f"nvidia-driver-cuda {nvidia.OLD}-1" in done.stderr
    assert "apt-mark unhold nvidia-driver-cuda" in done.stderr
    assert "Secure Boot is on" in done.stderr
    assert "mokutil --import" in done.stderr


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kimi_nvidia_repo_url": f"http://{NETWORK}.1:1"}, "cannot be reached"),
        ({"kimi_nvidia_repo_key_fingerprint": "AB" * 20}, "pinned is ABAB"),
        ({"kimi_nvidia_driver_version": "580.1.1"}, "has no"),
    ],
    ids=["a mirror that is away", "another key", "a version that is not there"],
)
def test_a_repository_that_is_not_as_told(
    host: Host, tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    done = apply(host, *told(tmp_path / "told.yml", **wrong))
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stderr
    assert "nothing was changed" in done.stderr or "pinned" in done.stderr


def test_what_intercepts_nccl_is_set_aside(host: Host) -> None:
    """Any library does as a stand-in for Google's: the loader knows them by their folder."""
    host.ssh(
        "mkdir -p /usr/local/gib/lib64 && cp /lib/x86_64-linux-gnu/libz.so.1 /usr/local/gib/lib64 "
        "&& echo /usr/local/gib/lib64 > /etc/ld.so.conf.d/gib.conf && ldconfig "
        "&& ldconfig -p | grep -q /usr/local/gib"
    )
    done = host.apply("--tags", "nccl_guard")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1" in done.stdout
    left = host.ssh(
        "ldconfig -p | grep gib; ls -d /usr/local/gib /etc/ld.so.conf.d/gib*", check=False
    )
    assert left == ""
    kept = host.ssh("cd /var/lib/kimi/set-aside && find . -type f").split()
    assert sorted(kept) == ["./etc/ld.so.conf.d/gib.conf", "./usr/local/gib/lib64/libz.so.1"]
    assert "changed=0" in host.apply("--tags", "nccl_guard").stdout


def test_killed_between_install_and_restart_then_resumed(host: Host) -> None:
    argv = [KIMI_PROV, "apply", str(host.inventory), "--tags", "nvidia_driver"]
    host.ssh("systemctl mask --runtime reboot.target")  # the restart never gets through
    kill_tree_when(argv, "Restart the machine")
    host.ssh("systemctl unmask --runtime reboot.target")
    assert versions(host) == {nvidia.NEW}
    assert host.ssh("cat /proc/driver/nvidia/version").find(nvidia.OLD) > 0
    done = apply(host)
    assert done.returncode == 0, done.stdout + done.stderr
    assert running(host) == nvidia.NEW
    assert set(installed(host)) == {
        "libcuda1",
        "libnvidia-nscq",
        "nvidia-driver-cuda",
        "nvidia-fabricmanager",
        "nvidia-kernel-open-dkms",
        "nvidia-persistenced",
    }
    assert set(host.ssh("apt-mark showhold").split()) == set(installed(host))
    units = "nvidia-persistenced nvidia-fabricmanager"
    assert host.ssh(f"systemctl is-active {units}").split() == ["active", "active"]
    kept = host.ssh("ls /var/lib/kimi/driver/previous").split()
    assert len(kept) == 6
    assert all(nvidia.OLD in name for name in kept)


def test_a_second_run_changes_nothing(host: Host) -> None:
    done = apply(host)
    assert done.returncode == 0, done.stderr
    assert "changed=0" in done.stdout


@pytest.mark.slow
def test_what_does_not_answer_is_taken_back_and_not_tried_again(host: Host, tmp_path: Path) -> None:
    before = running(host)
    wish = told(tmp_path / "told.yml", kimi_nvidia_driver_version=nvidia.BROKEN)
    done = apply(host, *wish)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"driver {nvidia.BROKEN} did not answer" in done.stderr
    assert f"the machine is back on {before}" in done.stderr
    assert running(host) == before
    assert versions(host) == {before}
    again = apply(host, *wish)
    assert again.returncode == 3, again.stderr
    assert "driver.failed_here" in again.stderr
