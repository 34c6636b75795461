"""A machine that is in use: what stands in the way is refused whole, what does not is left alone.

Security modules are files of the same form, for no kernel here has one; Docker's packages and
daemon are Debian's own, and a container is a network namespace on Docker's bridge, for containers
do not run inside a container here. The card is a recording.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import CHECKOUT, KIMI_PROV, kimi_prov, make_lab, picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab
NETWORK = "10.93.84"
RECORDED = CHECKOUT / "tests" / "data" / "recordings" / "h200-x8"
INSTALL = (
    "(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy "
    "--no-install-recommends {}) >/dev/null 2>&1"
)
TMP = ("/tmp", "/var/tmp", "/dev/shm")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host that other people use."""
    made = make_lab(
        tmp_path_factory.mktemp("busy") / "inv",
        NETWORK,
        nodes=["busy"],
        files=[{"src": f"nvidia-smi:{RECORDED}", "dest": "/opt/recorded/nvidia-smi"}],
        kimi_allowed_networks=["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"],
    )
    with made.running():
        made.hosts["busy"].ssh(INSTALL.format("iptables psmisc"), timeout=900)
        yield made.hosts["busy"]


@contextmanager
def dressed(host: Host, *pairs: tuple[str, str]) -> Iterator[None]:
    """Run the first command of each pair there, and the second of each in any case."""
    try:
        for before, _ in pairs:
            host.ssh(before)
        yield
    finally:
        for _, after in reversed(pairs):
            host.ssh(after, check=False)


# A package whose script fails, as one that was cut off.
BROKEN = """
mkdir -p /root/broken/DEBIAN && cd /root
printf 'Package: broken\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@example.com>\\n' \
  > broken/DEBIAN/control
printf 'Description: one that does not end\\n' >> broken/DEBIAN/control
printf '#!/bin/sh\\nexit 1\\n' > broken/DEBIAN/postinst && chmod 755 broken/DEBIAN/postinst
dpkg-deb -b broken >/dev/null && ! dpkg -i broken.deb >/dev/null 2>&1
"""
# What Docker 20.10 of Debian 12 wrote for `docker run -p 8000:80`, and its proxy's name.
PUBLISHED = """
iptables-restore --noflush <<'RULES'
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -p tcp -m tcp --dport 8000 -j DNAT --to-destination 172.17.0.2:80
COMMIT
RULES
"""
UNPUBLISHED = "printf '*nat\\nCOMMIT\\n' | iptables-restore"
ENFORCED = """
mount -t tmpfs none /sys/fs/selinux && echo 1 > /sys/fs/selinux/enforce
mount -t tmpfs none /sys/kernel/security && mkdir /sys/kernel/security/apparmor
echo capability,selinux,apparmor > /sys/kernel/security/lsm
echo '/usr/sbin/haproxy (enforce)' > /sys/kernel/security/apparmor/profiles
"""
NOEXEC = "mkdir /srv/kimi && mount --bind /srv/kimi /srv/kimi && mount -o remount,bind,noexec "
DRESSES = (
    (BROKEN, "dpkg --purge --force-all broken; rm -r /root/broken*"),
    (PUBLISHED, UNPUBLISHED),
    (ENFORCED, "umount /sys/fs/selinux /sys/kernel/security"),
    (NOEXEC + "/srv/kimi", "umount /srv/kimi; rmdir /srv/kimi"),
    ("mount -t tmpfs -o size=64m none /boot", "umount /boot"),
    ("ln -s /opt/recorded/nvidia-smi /usr/bin/nvidia-smi", "rm /usr/bin/nvidia-smi"),
)
REFUSED = {
    "port.taken": "8000 by a rule of iptables that sends it to 172.17.0.2:80",
    "packages.unfinished": "broken",
    "os.selinux": "enforcing",
    "disk.mount": "/srv/kimi is mounted with noexec",
    "driver.boot": "64.0 MiB free on /boot",
}


def test_all_that_stands_in_the_way_is_told_at_once_and_nothing_changes(
    busy: Host, tmp_path: Path
) -> None:
    wishes = tmp_path / "wishes.yml"
    wishes.write_text(
        yaml.safe_dump(
            {
                "kimi_engine_stand_in": "file:///opt/models/kimi-k2-lab",
                "kimi_nvidia_driver_version": "999.1.1",
            }
        )
    )
    with dressed(busy, *DRESSES):
        before = picture(busy)
        done = busy.apply("-e", f"@{wishes}")
        assert picture(busy) == before
        planned = kimi_prov("plan", busy.inventory, "--format", "json")
    assert done.returncode == 3, done.stdout + done.stderr
    for identity, observed in REFUSED.items():
        assert identity in done.stderr
        assert observed in re.sub(r"\s+", " ", done.stderr)
    assert "dpkg --configure -a" in done.stderr
    findings = json.loads(planned.stdout)["hosts"][busy.name]["findings"]
    (apparmor,) = [row for row in findings if row["id"] == "os.apparmor"]
    assert (apparmor["severity"], apparmor["observed"]) == (
        "warning",
        "enforced: /usr/sbin/haproxy",
    )


# A real apt-get that holds its locks until it is told to go on.
APT = (
    "systemd-run -q --unit=upgrade apt-get -o "
    "DPkg::Pre-Invoke::='until test -e /run/go; do sleep 0.2; done' install -qy --reinstall "
    "hostname && until fuser -s /var/lib/dpkg/lock-frontend; do sleep 0.2; done"
)
WAITING = "waiting for apt and dpkg: apt-get (PID"


def test_who_keeps_apt_for_too_long_is_named_before_anything_changes(
    busy: Host, tmp_path: Path
) -> None:
    patience = tmp_path / "patience.yml"
    patience.write_text("preflight_packages_timeout_s: 3\n")
    with dressed(busy, (APT, "systemctl stop upgrade; dpkg --configure -a")):
        before = picture(busy)
        done = busy.apply("-e", f"@{patience}")
        assert picture(busy) == before
    assert done.returncode == 3, done.stdout + done.stderr
    assert "packages.busy" in done.stderr
    assert "apt-get (PID" in done.stderr
    assert "systemctl stop upgrade.service" in done.stderr


DOCKER = """
until iptables-save | grep -q 'A FORWARD -j DOCKER'; do sleep 0.5; done
iptables -P FORWARD DROP
ip netns add container && ip link add vc0 type veth peer name vc1 netns container
ip link set vc0 master docker0 up && ip link set docker0 up
ip -n container addr add 172.17.0.2/16 dev vc1 && ip -n container link set vc1 up
"""
# From a container to the serving port of its host, and to its sshd, which nobody guards.
KNOCK = (
    "ip netns exec container timeout 2 bash -c 'exec 3<>/dev/tcp/172.17.0.1/{}' 2>/dev/null; "
    "echo $?"
)
NO_ANSWER, CONNECTED = "124", "0"


def docker_rules(host: Host) -> str:
    """Docker's rules, without their counters."""
    return host.ssh("iptables-save | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'")


@pytest.fixture(scope="module")
def rules(busy: Host) -> str:
    """Docker and needrestart are there, and nothing runs from /tmp. Docker's rules as they are."""
    busy.ssh(INSTALL.format("docker.io needrestart"), timeout=900)
    busy.ssh(DOCKER)
    for place in TMP:
        busy.ssh(f"mount -t tmpfs -o noexec,nosuid,nodev,mode=1777,size=2g none {place}")
    return docker_rules(busy)


@pytest.mark.slow
def test_beside_docker_without_programs_in_tmp_and_after_apts_locks_it_serves(
    busy: Host, rules: str
) -> None:
    said = ""
    with (
        dressed(busy, (APT, "touch /run/go")),
        subprocess.Popen(
            [KIMI_PROV, "apply", str(busy.inventory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as applying,
    ):
        assert applying.stdout is not None
        for line in applying.stdout:
            if WAITING in line and WAITING not in said:
                busy.ssh("touch /run/go")
            said += line
    assert applying.returncode == 0, said
    assert WAITING in said
    verified = kimi_prov("verify", busy.inventory)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert docker_rules(busy) == rules


@pytest.mark.slow
def test_containers_stay_outside_whoever_restarts(busy: Host, rules: str) -> None:
    """After the test before."""
    assert busy.ssh(KNOCK.format(22)).strip() == CONNECTED
    for command in ("true", "systemctl restart docker", "systemctl restart kimi-firewall"):
        busy.ssh(command)
        assert busy.ssh(KNOCK.format(8000)).strip() == NO_ANSWER, command
    assert sorted(docker_rules(busy).splitlines()) == sorted(rules.splitlines())


@pytest.mark.slow
def test_an_upgraded_library_restarts_no_engine(busy: Host) -> None:
    """After the tests before. Each library is replaced by a copy of itself, as by an upgrade."""
    main = "systemctl show -P MainPID kimi-proxy kimi-serve@0"
    before = busy.ssh(main)
    busy.ssh(
        "for name in libpcre2-8.so.0 libexpat.so.1; do file=$(readlink -f /usr/lib/*/$name); "
        "cp -a $file $file.new; mv $file.new $file; done"
    )
    told = busy.ssh("DEBIAN_FRONTEND=noninteractive needrestart -r a 2>&1", timeout=300)
    deferred = told.partition("being deferred")[2]
    assert "kimi-proxy.service" in deferred
    assert "kimi-serve@0.service" in deferred
    assert busy.ssh(main) == before


@pytest.mark.slow
def test_destroy_leaves_dockers_rules(busy: Host) -> None:
    """After the tests before."""
    before = docker_rules(busy)
    done = kimi_prov("destroy", busy.inventory, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert docker_rules(busy) == before
    assert "inet kimi" not in busy.ssh("nft list tables")
    assert busy.ssh("ls /etc/needrestart/conf.d").split() == ["README.needrestart"]
