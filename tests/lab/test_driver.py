"""The driver role against a repository of real packages: there, back, and every way in between.

The GPUs, their module and nvidia-smi are stand-ins (tests/lab/nvidia.py); a restart of the
container counts as a restart. An emulated machine restarts in test_driver_emulated.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import nvidia
import pytest
import yaml
from machines import KIMI_PROV, kill_tree_when, kimi_prov
from nvidia import installed, running, versions

from kimi_prov.contract import paths

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host, Lab

pytestmark = pytest.mark.lab
NETWORK = "10.93.62"
NVIDIAS = {package.name for package in nvidia.packages(nvidia.NEW)}
FAST = {"nvidia_driver_answer_timeout_s": 5, "nvidia_driver_reboot_timeout_s": 120}


def apply(host: Host, *more: str) -> subprocess.CompletedProcess[str]:
    return host.apply("--tags", "nvidia_driver", *more)


def told(path: Path, **variables: object) -> tuple[str, str]:
    path.write_text(yaml.safe_dump(variables))
    return "-e", f"@{path}"


def lock_free(host: Host) -> bool:
    return host.ssh(f"ls {paths.APPLY_LOCK}", check=False) == ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, nvidia.Repository]]:
    """Two machines with drivers that are too old: NVIDIA's own on one, Debian's on the other."""
    folder = tmp_path_factory.mktemp("driver")
    drivers = {"gpu1": nvidia.OLD, "gpu2": nvidia.DEBIAN}
    with nvidia.machines(folder, NETWORK, drivers, **FAST) as found:
        yield found


@pytest.fixture(scope="module")
def host(lab: tuple[Lab, nvidia.Repository]) -> Host:
    """The machine with NVIDIA's own."""
    return lab[0].hosts["gpu1"]


@pytest.fixture(scope="module")
def other(lab: tuple[Lab, nvidia.Repository]) -> Host:
    """The machine with Debian's."""
    return lab[0].hosts["gpu2"]


@pytest.fixture(scope="module")
def repo(lab: tuple[Lab, nvidia.Repository]) -> nvidia.Repository:
    """Where the new drivers are."""
    return lab[1]


def pictured(host: Host) -> tuple[dict[str, str], str]:
    """What a run that is refused leaves as it was: packages, boot, apt's settings, dpkg."""
    return installed(host), host.ssh(
        "cut -d' ' -f22 /proc/1/stat; ls /etc/apt/sources.list.d /etc/apt/preferences.d; "
        "dpkg --audit"
    )


@pytest.fixture
def untouched(host: Host) -> Iterator[None]:
    """What fails here has changed no package, restarted nothing, and left nothing to apt."""
    before = pictured(host)
    yield
    assert pictured(host) == before
    assert lock_free(host)
    assert versions(host) == {nvidia.OLD}


@pytest.mark.slow
@pytest.mark.usefixtures("untouched")
def test_who_may_not_restart_is_refused_and_the_others_go_on(host: Host, other: Host) -> None:
    # Beside what the lab writes there: Ansible reads the folder or a file of its name.
    own = host.inventory / "host_vars" / "gpu1" / "consent.yml"
    own.write_text("nvidia_driver_reboot_ok: false\n")
    try:
        done = kimi_prov("apply", host.inventory, "--tags", "nvidia_driver")
    finally:
        own.unlink()
    assert done.returncode == 3, done.stdout + done.stderr
    assert "driver.reboot" in done.stderr
    assert "nvidia_driver_reboot_ok: true for gpu1" in done.stderr
    assert running(other) == nvidia.NEW
    assert lock_free(other)


@pytest.mark.slow
def test_the_distributions_own_driver_went_in_the_same_transaction(other: Host) -> None:
    """After the test before. Its packages are kept for a rollback; what is beside it stays."""
    assert set(installed(other)) == {*NVIDIAS, "nvidia-kernel-common"}
    assert set(other.ssh("apt-mark showhold").split()) == NVIDIAS
    kept = other.ssh("ls /var/lib/kimi/driver/previous").split()
    assert {name.partition("_")[0] for name in kept} == {
        package.name for package in nvidia.debian() if package.version == nvidia.DEBIAN
    }


@pytest.mark.slow
def test_the_kernels_headers_were_there_before_the_module_was_built(other: Host) -> None:
    """After the test before: without them the stand-in for DKMS builds nothing, in silence."""
    assert other.ssh("dpkg-query -W -f '${Status}' " + nvidia.HEADERS) == "install ok installed"


@pytest.mark.usefixtures("untouched")
def test_check_on_a_virgin_host_says_what_would_be_done(host: Host) -> None:
    done = apply(host, "--check")
    assert done.returncode == 0, done.stderr
    assert "Report what would be done" in done.stdout


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("away", [True, False], ids=["away", "not signed"])
def test_a_mirror_whose_key_is_had_elsewhere(
    host: Host, repo: nvidia.Repository, tmp_path: Path, *, away: bool
) -> None:
    wrong = told(
        tmp_path / "told.yml",
        kimi_nvidia_repo_url=f"http://{NETWORK}.1:1" if away else repo.archive,
        kimi_nvidia_repo_key_url=f"{repo.url}/3bf863cc.pub",
    )
    done = apply(host, *wrong)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not answer as it should" in done.stderr
    assert ("Could not connect" if away else "is not signed") in done.stderr
    assert "nothing was changed" in done.stderr


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
    assert set(installed(host)) == NVIDIAS
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


WAITING = """
import json, sys
sys.path.insert(0, "/srv/kimi/lib/kimi-target.pyz")
from kimi_prov.on_host.update import waiting
print(json.dumps([row._asdict() for row in waiting.list_packages() if row.kind == "driver"]))
"""


def test_an_unattended_upgrade_leaves_the_driver_and_a_newer_one_is_seen(host: Host) -> None:
    """After the tests before. The repository has newer ones, and the upgrade is told to take it."""
    before = running(host), installed(host)
    host.ssh(
        "DEBIAN_FRONTEND=noninteractive apt-get -qq -y install unattended-upgrades && "
        "echo 'Unattended-Upgrade::Origins-Pattern { \"origin=lab\"; };' "
        "> /etc/apt/apt.conf.d/99lab && apt-get -qq update",
        timeout=600,
    )
    try:
        host.ssh("unattended-upgrade --verbose", timeout=600)
    finally:
        host.ssh("rm /etc/apt/apt.conf.d/99lab")
    assert (running(host), installed(host)) == before
    (row,) = json.loads(host.ssh(f"python3 - <<'EOF'\n{WAITING}\nEOF"))
    assert (row["kind"], row["held"], row["candidate"]) == ("driver", True, f"{nvidia.NEWER}-1")
    assert row["installed"] == f"{before[0]}-1"


@pytest.mark.slow
def test_what_does_not_answer_is_taken_back_and_not_tried_again(
    host: Host, other: Host, tmp_path: Path
) -> None:
    """Nor on the machine after it: what one did not stand, the next is spared."""
    before = running(host)
    spared = pictured(other)
    wish = told(tmp_path / "told.yml", kimi_nvidia_driver_version=nvidia.BROKEN)
    done = kimi_prov("apply", host.inventory, "--tags", "nvidia_driver", *wish)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"driver {nvidia.BROKEN} did not answer" in done.stderr
    assert f"the machine is back on {before}" in done.stderr
    assert running(host) == before
    assert versions(host) == {before}
    assert pictured(other) == spared
    assert lock_free(host)
    assert lock_free(other)
    again = apply(host, *wish)
    assert again.returncode == 3, again.stderr
    assert "driver.failed_here" in again.stderr


@pytest.mark.slow
def test_two_machines_one_after_the_other(host: Host, other: Host, tmp_path: Path) -> None:
    wish = told(tmp_path / "told.yml", kimi_nvidia_driver_version=nvidia.NEWER)
    done = kimi_prov("apply", host.inventory, "--tags", "nvidia_driver", *wish)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (running(host), running(other)) == (nvidia.NEWER, nvidia.NEWER)
    ticks, zero = "cut -d' ' -f22 /proc/1/stat", "sed -n 's/^btime //p' /proc/stat"
    booted = int(host.ssh(f"echo $(( $({zero}) + $({ticks}) / 100 ))"))
    began = other.ssh(f"grep -m1 -F ' {nvidia.NEWER}-1' /var/log/dpkg.log")
    assert booted < int(other.ssh(f"date +%s -d '{' '.join(began.split()[:2])}'"))
    assert lock_free(host)
    assert lock_free(other)


def test_destroy_leaves_the_driver_and_brings_back_what_was_set_aside(host: Host) -> None:
    """After the tests before."""
    before = running(host), {*installed(host)}
    done = kimi_prov("destroy", host.inventory, "--limit", host.name, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"NVIDIA's driver {before[0]}" in done.stdout + done.stderr
    assert (running(host), {*installed(host)}) == before
    assert host.ssh("apt-mark showhold") == ""
    assert host.ssh("ldconfig -p | grep -c /usr/local/gib").strip() == "1"
    left = host.ssh("find /etc /var/lib/kimi /usr/sbin/policy-rc.d -name '*kimi*'", check=False)
    assert left == ""
    assert "inactive" not in host.ssh("systemctl is-active nvidia-fabricmanager")
